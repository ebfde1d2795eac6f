package flatcar

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/packed"
)

// update writes flatcar_production_update.gz, which is no gzip.
func update(tb testing.TB, data []byte) string {
	tb.Helper()

	return write(tb, filepath.Join(tb.TempDir(), "flatcar_production_update.gz"), data)
}

func TestReadPayload(t *testing.T) {
	t.Parallel()

	for _, architecture := range []string{"amd64", "arm64"} {
		from := makeRelease(t, architecture, "btrfs", goodRelease)
		signed := fullArchive(t, from)
		signed.pcr = true
		signed.keys = []*rsa.PrivateKey{newKey(t), newKey(t)}
		path := update(t, signed.bytes(t))
		first, second := &signed.keys[0].PublicKey, &signed.keys[1].PublicKey

		for _, test := range []struct {
			keys []*rsa.PublicKey
			note string
		}{
			{nil, "no key was given"},
			{[]*rsa.PublicKey{first}, "signed with a given key of 2048 bits"},
			{[]*rsa.PublicKey{&newKey(t).PublicKey, second}, "signed with a given key"},
		} {
			var done, total int64

			parts, err := Read(t.Context(), path, Options{Keys: test.keys, Full: true, Progress: func(d, all int64) {
				if d < done || d > all {
					t.Errorf("progress %d after %d of %d", d, done, all)
				}

				done, total = d, all
			}})
			if err != nil {
				t.Fatal(err)
			}

			// Manifest and signatures are read, too, but not told of in the second pass.
			if done < total*9/10 {
				t.Errorf("the progress ended at %d of %d", done, total)
			}

			if !noted(parts, test.note) || !noted(parts, "TPM") || !noted(parts, "not known") {
				t.Errorf("the notes are %q", parts.Notes)
			}

			check(t, parts, from, architecture)
		}
	}
}

func TestReadPackedPayload(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "ext4", goodRelease)
	data := fullArchive(t, from).bytes(t)

	for _, with := range [][]string{{"gzip", "-1"}, {"bzip2", "-1"}} {
		path := write(t, filepath.Join(t.TempDir(), "update"), data)
		temp := t.TempDir()

		parts, err := Read(t.Context(), pack(t, path, with), Options{TempDir: temp})
		if err != nil {
			t.Fatal(err)
		}

		if !noted(parts, "the payload is not signed") {
			t.Errorf("the notes are %q", parts.Notes)
		}

		check(t, parts, from, "amd64")
	}
}

func TestReadPartition(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "btrfs", goodRelease)
	dir := t.TempDir()
	path := write(t, filepath.Join(dir, "flatcar_production_update.bin"), from.usr)
	kernel := write(t, filepath.Join(dir, "flatcar_production_image.vmlinuz"), from.kernel)

	for _, file := range []string{path, pack(t, write(t, filepath.Join(dir, "packed"), from.usr), []string{"bzip2", "-1"})} {
		parts, err := Read(t.Context(), file, Options{Kernel: kernel, Full: true, TempDir: dir})
		if err != nil {
			t.Fatal(err)
		}

		if !noted(parts, ".DIGESTS") {
			t.Errorf("the notes are %q", parts.Notes)
		}

		check(t, parts, from, "amd64")
	}

	for says, options := range map[string]Options{
		"with --kernel":    {},
		"has no signature": {Kernel: kernel, Keys: []*rsa.PublicKey{&newKey(t).PublicKey}},
		"no such file":     {Kernel: kernel + ".missing"},
		"want \"MZ\"":      {Kernel: path},
		"the kernel has 3": {Kernel: write(t, filepath.Join(dir, "short"), []byte("MZ "))},
	} {
		if _, err := Read(t.Context(), path, options); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want %q", err, says)
		}
	}
}

// Blobs and operations in any order, operations with several extents, and holes: what delta_generator never makes, but
// the format allows.
func TestReadPayloadOutOfOrder(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "ext4", goodRelease)
	made := &archive{magic: payloadMagic, version: 1, blockSize: 4096, usrInfo: infoOf(from.usr), kernel: infoOf(from.kernel)}

	for at := 0; at < partSize; at += 2 * mib {
		// Halves go into two places, the second of which comes first.
		raw := slices.Concat(from.usr[at+mib:at+2*mib], from.usr[at:at+mib])
		if len(bytes.Trim(raw, "\x00")) == 0 {
			continue
		}

		made.usr = append(made.usr, made.add(t, raw, [2]uint64{uint64(at+mib) / 4096, 256}, [2]uint64{uint64(at) / 4096, 256}))
	}

	slices.Reverse(made.usr)

	made.kernels = [][]archiveOp{{made.add(t, from.kernel, [2]uint64{0, 100}, [2]uint64{100, 10000})}}

	parts, err := ReadPayload(t.Context(), update(t, made.bytes(t)), Options{Full: true})
	if err != nil {
		t.Fatal(err)
	}

	check(t, parts, from, "amd64")
}

func TestContentReader(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "ext4", goodRelease)
	path := update(t, fullArchive(t, from).bytes(t))

	file, err := packed.Open(t.Context(), path, packed.Options{})
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	container, err := openPayload(file, Options{})
	if err != nil {
		t.Fatal(err)
	}

	made, err := newContent(container, "kernel", container.procedures[0].operations, container.procedures[0].info, maxKernel)
	if err != nil {
		t.Fatal(err)
	}

	if err := iotest.TestReader(io.NewSectionReader(made.reader(), 0, made.size), from.kernel); err != nil {
		t.Error(err)
	}
}

func TestReadPayloadRefuses(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "ext4", goodRelease)
	other := makeRelease(t, "amd64", "ext4", goodRelease)
	full := fullArchive(t, from)
	key := newKey(t)
	keyed := Options{Keys: []*rsa.PublicKey{&key.PublicKey}}

	for name, test := range map[string]struct {
		change  func(a *archive)
		data    func(file []byte) []byte
		options Options
		kind    error
		says    string
	}{
		"another magic": {change: func(a *archive) { a.magic = "CrAX" }, says: `offset 0: it begins with "CrAX"`},
		"version 2":     {change: func(a *archive) { a.version = 2 }, says: "offset 4: the payload's version is 2"},
		"no manifest": {
			data: func(f []byte) []byte { clear(f[12:20]); return f }, says: "offset 12: the manifest has 0 bytes",
		},
		"huge manifest": {
			data: func(f []byte) []byte { f[12] = 0xff; return f }, says: "offset 12: the manifest has 18",
		},
		"long manifest": {
			data: func(f []byte) []byte { f[17] = 0x7f; return f[:mib] },
			kind: osimage.ErrTruncated,
			says: "the payload's manifest ends at",
		},
		"cut in the header": {
			data: func(f []byte) []byte { return f[:15] }, kind: osimage.ErrTruncated, says: "header ends at 20, the file at 15",
		},
		"cut in the data": {
			data: func(f []byte) []byte { return f[:len(f)-1] }, kind: osimage.ErrTruncated, says: "the payload's data ends at",
		},
		"garbage as manifest": {
			data: func(f []byte) []byte { f[20] = 0xff; return f }, says: "the payload's manifest, offset 22",
		},
		"another wire type": {
			change: func(a *archive) { a.extra = embed(nil, 3, nil) }, says: "block_size has the wire type 2, want 0",
		},
		"varint as operation": {
			change: func(a *archive) { a.extra = varint(nil, 1, 1) }, says: "partition_operations has the wire type",
		},
		"varint as procedure": {
			change: func(a *archive) { a.extra = varint(nil, 10, 1) }, says: "procedures has the wire type",
		},
		"varint as info": {
			change: func(a *archive) { a.extra = varint(nil, 9, 1) }, says: "new_partition_info has the wire type",
		},
		"block size": {change: func(a *archive) { a.blockSize = 512 }, says: "block_size is 512, want 4096"},
		"no type": {
			change: func(a *archive) { a.usr[3].untyped = true }, says: "partition_operations.type is missing",
		},
		"MOVE": {
			change: func(a *archive) { a.usr[3].kind = opMove },
			says:   "a delta payload needs the exact old image (give the full payload)",
		},
		"BSDIFF":       {change: func(a *archive) { a.usr[3].kind = opBSDiff }, says: "give the full payload"},
		"unknown type": {change: func(a *archive) { a.usr[3].kind = 9 }, says: "the operation's type is 9"},
		"no data":      {change: func(a *archive) { a.usr[3].length = 0 }, says: "the operation's data has 0 bytes"},
		"data beyond the end": {
			change: func(a *archive) { a.usr[3].offset = 1 << 40 },
			kind:   osimage.ErrTruncated,
			says:   "the payload's data ends at",
		},
		"endless data": {
			change: func(a *archive) { a.usr[3].length = 1<<64 - 1 },
			kind:   osimage.ErrTruncated,
			says:   "the payload's data ends at",
		},
		"no hash": {
			change: func(a *archive) { a.usr[3].sum = nil }, says: "the hash of the operation's data has 0 bytes",
		},
		"another hash": {
			change: func(a *archive) { a.usr[3].sum = make([]byte, 32) }, kind: osimage.ErrWrongDigest, says: "have the SHA-256",
		},
		"a kernel's other hash": {
			change: func(a *archive) { a.kernels[0][1].sum = make([]byte, 32) },
			kind:   osimage.ErrWrongDigest,
			says:   "have the SHA-256",
		},
		"no extents": {change: func(a *archive) { a.usr[3].extents = nil }, says: "the operation writes nowhere"},
		"an empty extent": {
			change: func(a *archive) { a.usr[3].extents = [][2]uint64{{768, 0}} }, says: "writes 0 blocks from block 768",
		},
		"an endless extent": {
			change: func(a *archive) { a.usr[3].extents = [][2]uint64{{768, 1 << 63}} },
			says:   "writes 9223372036854775808 blocks",
		},
		"a sparse hole": {
			change: func(a *archive) { a.usr[3].extents = [][2]uint64{{1<<64 - 1, 1}} }, says: "from block 18446744073709551615",
		},
		"a block written twice": {
			change: func(a *archive) { a.usr[3].extents = [][2]uint64{{767, 256}} },
			says:   "two operations write block 767 of the /usr",
		},
		"no size of /usr": {
			change: func(a *archive) { a.usrInfo = nil }, says: "does not tell size and hash of the /usr",
		},
		"no size of the kernel": {
			change: func(a *archive) { a.kernel = nil }, says: "does not tell size and hash of the kernel",
		},
		"a /usr of 2 GiB": {
			change: func(a *archive) { a.usrInfo = &archiveInfo{2 << 30, a.usrInfo.sum} }, says: "want 1 to 1073741824",
		},
		"a short hash of /usr": {
			change: func(a *archive) { a.usrInfo = &archiveInfo{a.usrInfo.size, a.usrInfo.sum[:31]} },
			says:   "the hash of the /usr has 31 bytes",
		},
		"an endless kernel": {
			change: func(a *archive) { a.kernel = &archiveInfo{1 << 63, a.kernel.sum} },
			says:   "the kernel has 9223372036854775808 bytes",
		},
		"two kernels": {
			change: func(a *archive) { a.kernels = append(a.kernels, a.kernels[0]) }, says: "the manifest has 2 kernels",
		},
		"no kernel":         {change: func(a *archive) { a.kernels = nil }, says: "with --kernel"},
		"a kernel too many": {options: Options{Kernel: "x"}, says: "leave --kernel out"},
		"another kernel": {func(a *archive) {
			b := fullArchive(t, other)
			b.kernels[0], b.usr = b.cut(t, other.kernel), b.cut(t, from.usr)
			b.usrInfo = a.usrInfo
			*a = *b
		}, nil, Options{}, osimage.ErrInvalid, "do not belong together"},
		"broken bzip2": {change: func(a *archive) { breakBlob(a) }, says: "cannot be unpacked"},
		"not signed":   {options: keyed, says: "the payload is not signed"},
		"signed by another": {
			change:  func(a *archive) { a.keys = []*rsa.PrivateKey{newKey(t)} },
			options: keyed,
			kind:    osimage.ErrWrongDigest,
			says:    "none of the keys has signed",
		},
		"changed after signing": {
			change:  func(a *archive) { a.keys = []*rsa.PrivateKey{key} },
			data:    func(f []byte) []byte { f[len(f)/2] ^= 1; return f },
			options: keyed,
			kind:    osimage.ErrWrongDigest,
			says:    "none of the keys has signed",
		},
		"more after the signing": {
			change:  func(a *archive) { a.keys, a.tail = []*rsa.PrivateKey{key}, []byte("x") },
			options: keyed,
			says:    "the signatures are",
		},
		"signatures elsewhere": {
			change:  func(a *archive) { a.keys, a.signaturesAt = []*rsa.PrivateKey{key}, 1<<63 },
			options: keyed,
			kind:    osimage.ErrTruncated,
			says:    "the payload's data ends at",
		},
		"a changed signature": {
			change:  func(a *archive) { a.keys = []*rsa.PrivateKey{key} },
			data:    func(f []byte) []byte { f[len(f)-1] ^= 1; return f },
			options: keyed,
			kind:    osimage.ErrWrongDigest,
			says:    "none of the keys has signed",
		},
		"garbage as signatures": {
			change:  func(a *archive) { a.keys = []*rsa.PrivateKey{key} },
			data:    func(f []byte) []byte { f[len(f)-264] = 0xff; return f },
			options: keyed,
			says:    "the payload's signatures, offset",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			made := *full
			made.usr = slices.Clone(full.usr)
			made.blobs = slices.Clone(full.blobs)
			made.kernels = [][]archiveOp{slices.Clone(full.kernels[0])}

			if test.change != nil {
				test.change(&made)
			}

			data := made.bytes(t)
			if test.data != nil {
				data = test.data(data)
			}

			parts, err := Read(t.Context(), update(t, data), test.options)
			refused(t, parts, err, test.kind, test.says, "update.gz")
		})
	}
}

// breakBlob breaks the stream of the first operation, not its hash.
func breakBlob(a *archive) {
	op := &a.usr[0]
	copy(a.blobs[op.offset+20:], "broken")
	op.sum = infoOf(a.blobs[op.offset : op.offset+op.length]).sum
}

// What an operation's hash does not tell, that of the whole does, at the end of the input.
func TestPayloadOfAnotherHash(t *testing.T) {
	t.Parallel()

	from := makeRelease(t, "amd64", "ext4", goodRelease)

	for role, change := range map[osimage.Role]func(a *archive){
		osimage.RoleUSR:    func(a *archive) { a.usrInfo.sum = make([]byte, 32) },
		osimage.RoleKernel: func(a *archive) { a.kernel.sum = make([]byte, 32) },
	} {
		made := fullArchive(t, from)
		change(made)

		parts, err := ReadPayload(t.Context(), update(t, made.bytes(t)), Options{})
		if err != nil {
			t.Fatal(err)
		}

		if _, err := slurp(t, parts, role); !errors.Is(err, osimage.ErrWrongDigest) {
			t.Errorf("%s: got %v", role, err)
		}

		if _, err := osimage.Build(t.Context(), t.TempDir(), parts.Spec()); !errors.Is(err, osimage.ErrWrongDigest) {
			t.Errorf("%s: an image was built: %v", role, err)
		}

		if err := parts.Release(); err != nil {
			t.Error(err)
		}
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()

	key := newKey(t)

	pkix, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}

	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	elliptic, err := x509.MarshalPKIXPublicKey(&curve.PublicKey)
	if err != nil {
		t.Fatal(err)
	}

	encode := func(kind string, data []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}) }

	keys, err := ParseKeys(slices.Concat([]byte("comment\n"), encode("PUBLIC KEY", pkix),
		encode("RSA PUBLIC KEY", x509.MarshalPKCS1PublicKey(&key.PublicKey))), "keys.pem")
	if err != nil || len(keys) != 2 || !keys[0].Equal(&key.PublicKey) || !keys[1].Equal(&key.PublicKey) {
		t.Errorf("got %v, %v", keys, err)
	}

	for says, data := range map[string][]byte{
		"no public key in PEM": []byte("x"),
		"want RSA":             encode("PUBLIC KEY", elliptic),
		"cannot be read":       encode("PUBLIC KEY", []byte("x")),
		"it holds a \"RSA PRI": encode("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)),
	} {
		_, err := ParseKeys(data, "keys.pem")
		refused(t, nil, err, nil, says, "keys.pem")
	}
}
