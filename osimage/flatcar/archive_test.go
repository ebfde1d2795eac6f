package flatcar

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/binary"
	"os/exec"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// archive is a payload in the making, as delta_generator of update_engine makes it.
type archive struct {
	magic     string
	version   uint64
	blockSize uint64
	usr       []archiveOp
	kernels   [][]archiveOp
	usrInfo   *archiveInfo
	kernel    *archiveInfo
	pcr       bool
	blobs     []byte
	keys      []*rsa.PrivateKey

	// signaturesAt moves the signatures in the manifest.
	signaturesAt uint64
	// extra is appended to the manifest, tail to the file.
	extra, tail []byte
}

type archiveOp struct {
	kind           uint64
	offset, length uint64
	extents        [][2]uint64
	sum            []byte
	untyped        bool
}

type archiveInfo struct {
	size uint64
	sum  []byte
}

func infoOf(data []byte) *archiveInfo {
	sum := sha256.Sum256(data)

	return &archiveInfo{size: uint64(len(data)), sum: sum[:]}
}

// fullArchive cuts /usr and kernel into operations as a full update has them: of 1 MiB, compressed where that is smaller,
// and the last one's extent as long as the others'.
func fullArchive(tb testing.TB, from release) *archive {
	tb.Helper()

	result := &archive{magic: payloadMagic, version: 1, blockSize: 4096, usrInfo: infoOf(from.usr), kernel: infoOf(from.kernel)}
	result.usr = result.cut(tb, from.usr)
	result.kernels = [][]archiveOp{result.cut(tb, from.kernel)}

	return result
}

func (a *archive) cut(tb testing.TB, data []byte) []archiveOp {
	tb.Helper()

	var ops []archiveOp

	for at := 0; at < len(data); at += mib {
		ops = append(ops, a.add(tb, data[at:min(len(data), at+mib)], [2]uint64{uint64(at / 4096), mib / 4096}))
	}

	return ops
}

// add appends a blob, and returns the operation that writes it.
func (a *archive) add(tb testing.TB, raw []byte, extents ...[2]uint64) archiveOp {
	tb.Helper()

	op := archiveOp{kind: opReplace, offset: uint64(len(a.blobs)), extents: extents}
	blob := raw

	bzip := exec.CommandContext(tb.Context(), "bzip2", "-1", "-c")
	bzip.Stdin = bytes.NewReader(raw)

	packed, err := bzip.Output()
	if err != nil {
		tb.Fatal(err)
	}

	if len(packed) < len(raw) {
		op.kind, blob = opReplaceBZ, packed
	}

	sum := sha256.Sum256(blob)
	op.length, op.sum = uint64(len(blob)), sum[:]
	a.blobs = append(a.blobs, blob...)

	return op
}

func varint(message []byte, number protowire.Number, value uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, number, protowire.VarintType), value)
}

func embed(message []byte, number protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(message, number, protowire.BytesType), data)
}

func (o archiveOp) encode() []byte {
	var message []byte

	if !o.untyped {
		message = varint(message, 1, o.kind)
	}

	message = varint(varint(message, 2, o.offset), 3, o.length)

	for _, extent := range o.extents {
		message = embed(message, 6, varint(varint(nil, 1, extent[0]), 2, extent[1]))
	}

	return embed(message, 8, o.sum)
}

func (i *archiveInfo) encode() []byte { return embed(varint(nil, 1, i.size), 2, i.sum) }

// bytes writes the payload.
func (a *archive) bytes(tb testing.TB) []byte {
	tb.Helper()

	var message []byte

	for _, op := range a.usr {
		message = embed(message, 1, op.encode())
	}

	message = varint(message, 3, a.blockSize)

	signatures := a.signatures(tb, make([]byte, 32))
	if len(a.keys) > 0 {
		message = varint(varint(message, 4, uint64(len(a.blobs))+a.signaturesAt), 5, uint64(len(signatures)))
	}

	if a.usrInfo != nil {
		message = embed(message, 9, a.usrInfo.encode())
	}

	for _, ops := range a.kernels {
		procedure := varint(nil, 1, procedureKernel)
		for _, op := range ops {
			procedure = embed(procedure, 2, op.encode())
		}

		if a.kernel != nil {
			procedure = embed(procedure, 4, a.kernel.encode())
		}

		message = embed(message, 10, procedure)
	}

	if a.pcr {
		message = embed(message, 10, varint(nil, 1, procedurePCR))
		message = embed(message, 10, varint(nil, 1, 77))
	}

	message = append(message, a.extra...)

	file := []byte(a.magic)
	file = binary.BigEndian.AppendUint64(file, a.version)
	file = binary.BigEndian.AppendUint64(file, uint64(len(message)))
	file = append(append(file, message...), a.blobs...)

	if len(a.keys) > 0 {
		sum := sha256.Sum256(file)
		file = append(file, a.signatures(tb, sum[:])...)
	}

	return append(file, a.tail...)
}

// signatures makes the message with one signature of each key. Their versions end with 2.
func (a *archive) signatures(tb testing.TB, sum []byte) []byte {
	tb.Helper()

	var message []byte

	for index, key := range a.keys {
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum)
		if err != nil {
			tb.Fatal(err)
		}

		message = embed(message, 1, embed(varint(nil, 1, uint64(3-len(a.keys)+index)), 2, signature))
	}

	return message
}

func newKey(tb testing.TB) *rsa.PrivateKey {
	tb.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}

	return key
}
