package flatcar

import (
	"bytes"
	"io"
	"testing"

	"github.com/stayput-dev/stayput/osimage/source/packed"
)

func FuzzReadKernel(f *testing.F) {
	for _, architecture := range []string{"amd64", "arm64"} {
		f.Add(makeKernel(architecture, "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")[:4096])
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		found, err := readKernel(bytes.NewReader(data), "fuzz")
		if err == nil && (len(found.rootHash) != 64 || found.architecture == "") {
			t.Errorf("%+v", found)
		}
	})
}

// smallArchive is a payload that fuzzing can change quickly.
func smallArchive(tb testing.TB) *archive {
	tb.Helper()

	usr, kernel := bytes.Repeat([]byte("usr "), 6000), makeKernel("amd64", "")[:9000]
	made := &archive{magic: payloadMagic, version: 1, blockSize: 4096, usrInfo: infoOf(usr), kernel: infoOf(kernel), pcr: true}
	made.usr = []archiveOp{
		made.add(tb, usr[8192:], [2]uint64{2, 3}, [2]uint64{5, 1}), made.add(tb, usr[:8192], [2]uint64{1, 1}, [2]uint64{0, 1}),
	}
	made.kernels = [][]archiveOp{{made.add(tb, kernel, [2]uint64{0, 256})}}

	return made
}

// FuzzPayload reads manifests and what their operations make. Hashes are not compared, so that it comes behind them.
func FuzzPayload(f *testing.F) {
	made := smallArchive(f)
	f.Add(made.bytes(f))

	made.extra = varint(varint(nil, 4, 100), 5, 200)
	f.Add(made.bytes(f))

	f.Fuzz(func(t *testing.T, data []byte) {
		container, err := openPayload(&packed.File{ReaderAt: bytes.NewReader(data), Name: "fuzz", Size: int64(len(data))}, Options{})
		if err != nil {
			return
		}

		if container.signed {
			_, _ = container.signatures()
		}

		lists := []procedure{{operations: container.operations, info: container.info}}

		for _, list := range append(lists, container.procedures...) {
			const limit = 4 << 20

			result, err := newContent(container, "content", list.operations, list.info, limit)
			if err != nil {
				continue
			}

			count, err := io.Copy(io.Discard, io.NewSectionReader(result.reader(), 0, result.size))
			if err == nil && count != result.size {
				t.Errorf("%d bytes of %d", count, result.size)
			}
		}
	})
}

func FuzzSignatures(f *testing.F) {
	f.Add(embed(nil, 1, embed(varint(nil, 1, 2), 2, make([]byte, 256))))

	f.Fuzz(func(t *testing.T, data []byte) {
		signatures, err := parseSignatures(data, 100)
		if err != nil {
			return
		}

		size := 0
		for _, signature := range signatures {
			size += len(signature)
		}

		if size > len(data) {
			t.Errorf("%d bytes of signatures in %d", size, len(data))
		}
	})
}

func FuzzOSRelease(f *testing.F) {
	f.Add([]byte(goodRelease))
	f.Add([]byte("A='\nB=\"\"\n=\n"))

	f.Fuzz(func(_ *testing.T, data []byte) { parseOSRelease(data) })
}
