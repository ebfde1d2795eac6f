package verity_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stayput-dev/stayput/osimage/verity"
	"github.com/stayput-dev/stayput/osimage/verity/veritytest"
)

func noise(size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails

	return data
}

// blockCounts make one, two and three levels, full and barely begun.
func blockCounts() []int { return []int{2, 127, 128, 129, 128 * 128, 128*128 + 1} }

func TestTreeIsThatOfVeritysetup(t *testing.T) {
	t.Parallel()

	for _, count := range blockCounts() {
		dir := t.TempDir()
		data, hashes := filepath.Join(dir, "data"), filepath.Join(dir, "hashes")
		content := noise(count * veritytest.BlockSize)

		if err := os.WriteFile(data, content, 0o600); err != nil {
			t.Fatal(err)
		}

		out, err := exec.CommandContext(t.Context(), "veritysetup", "format", "--salt=a1b2", data, hashes).Output()
		if err != nil {
			t.Fatalf("veritysetup: %v", err)
		}

		_, after, _ := strings.Cut(string(out), "Root hash:")
		want := strings.Fields(after)[0]
		_, got := veritytest.Format(content, []byte{0xa1, 0xb2})

		if got != want {
			t.Errorf("%d blocks: veritytest makes %s, veritysetup %s", count, got, want)
		}

		file, err := os.ReadFile(hashes)
		if err != nil {
			t.Fatal(err)
		}

		if err := verity.Check(t.Context(), bytes.NewReader(content), bytes.NewReader(file), 0, want); err != nil {
			t.Errorf("%d blocks: %v", count, err)
		}

		tree, err := verity.Open(bytes.NewReader(file), 0)
		if err != nil || tree.Size() != int64(len(file)) || tree.DataSize() != int64(len(content)) {
			t.Errorf("%d blocks: %+v, %v; the file has %d bytes", count, tree, err, len(file))
		}
	}
}

// A tree behind its data in one partition, as Flatcar has it, begins at an offset that the blocks count from.
func TestTreeBehindItsData(t *testing.T) {
	t.Parallel()

	data := noise(200 * veritytest.BlockSize)
	tree, root := veritytest.Format(data, []byte("salt"))
	partition := bytes.NewReader(append(bytes.Clone(data), tree...))

	if err := verity.CheckRoot(partition, int64(len(data)), root); err != nil {
		t.Error(err)
	}

	if err := verity.Check(t.Context(), partition, partition, int64(len(data)), root); err != nil {
		t.Error(err)
	}
}

func TestEveryChangedByteIsFound(t *testing.T) {
	t.Parallel()

	data := noise(130 * veritytest.BlockSize)
	hashes, root := veritytest.Format(data, nil)

	for _, change := range []struct {
		where string
		in    []byte
		at    int
		says  string
	}{
		{"the first block", data, 0, "data block at byte 0 "},
		{"the last byte", data, len(data) - 1, fmt.Sprintf("data block at byte %d ", len(data)-veritytest.BlockSize)},
		{"the top block", hashes, veritytest.BlockSize, "root hash"},
		{"the padding of the top block", hashes, 2*veritytest.BlockSize - 1, "root hash"},
		{"the second level", hashes, 2 * veritytest.BlockSize, "tree's block at byte 8192"},
		{"the tree's last block", hashes, len(hashes) - 1, "tree's block at byte 12288"},
		{"the salt's length", hashes, 80, "root hash"},
	} {
		change.in[change.at] ^= 1

		err := verity.Check(t.Context(), bytes.NewReader(data), bytes.NewReader(hashes), 0, root)
		if !errors.Is(err, verity.ErrMismatch) || !strings.Contains(err.Error(), change.says) {
			t.Errorf("%s changed: %v, want it to say %q", change.where, err, change.says)
		}

		change.in[change.at] ^= 1
	}

	if err := verity.Check(t.Context(), bytes.NewReader(data), bytes.NewReader(hashes), 0, root); err != nil {
		t.Errorf("unchanged: %v", err)
	}
}

// What a reader hands out is verified, to the last byte, however it is read.
func TestReader(t *testing.T) {
	t.Parallel()

	data := noise(300 * veritytest.BlockSize)
	hashes, root := veritytest.Format(data, []byte{1})

	tree, err := verity.Open(bytes.NewReader(hashes), 0)
	if err != nil {
		t.Fatal(err)
	}

	behind := append(bytes.Clone(data), "padding of the partition"...)
	if err := iotest.TestReader(tree.Reader(bytes.NewReader(behind), root), data); err != nil {
		t.Error(err)
	}

	broken := bytes.Clone(data)
	broken[200*veritytest.BlockSize+5]++

	got, err := io.ReadAll(tree.Reader(bytes.NewReader(broken), root))
	if !errors.Is(err, verity.ErrMismatch) || !bytes.Equal(got, data[:200*veritytest.BlockSize]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}

	if _, err := io.ReadAll(tree.Reader(bytes.NewReader(data[:len(data)-1]), root)); !errors.Is(err, verity.ErrMismatch) {
		t.Errorf("short data: %v", err)
	}

	if _, err := io.ReadAll(tree.Reader(iotest.ErrReader(os.ErrClosed), root)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("failing data: %v", err)
	}
}

func TestCheckStops(t *testing.T) {
	t.Parallel()

	data := noise(2 * veritytest.BlockSize)
	hashes, root := veritytest.Format(data, nil)
	ctx, cancel := context.WithCancel(t.Context())

	cancel()

	if err := verity.Check(ctx, bytes.NewReader(data), bytes.NewReader(hashes), 0, root); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBrokenSuperblocks(t *testing.T) {
	t.Parallel()

	data := noise(2 * veritytest.BlockSize)
	hashes, root := veritytest.Format(data, nil)
	put := func(at int, number uint64) func([]byte) {
		return func(tree []byte) { binary.LittleEndian.PutUint64(tree[at:], number) }
	}

	for _, test := range []struct {
		says   string
		change func(tree []byte)
	}{
		{`want "verity`, func(tree []byte) { tree[0] = 'V' }},
		{"superblock version 2", func(tree []byte) { tree[8] = 2 }},
		{"hash type 0", func(tree []byte) { tree[12] = 0 }},
		{`"sha512"`, func(tree []byte) { copy(tree[32:], "sha512") }},
		{"data blocks of 0 and", func(tree []byte) { copy(tree[64:], make([]byte, 4)) }},
		{"hash blocks of 0 bytes", func(tree []byte) { copy(tree[68:], make([]byte, 4)) }},
		{"hash blocks of 4097 bytes", func(tree []byte) { tree[68] = 1 }},
		{"hash blocks of 2147487744 bytes", func(tree []byte) { tree[71] = 0x80 }},
		{"it has 0 data blocks", put(72, 0)},
		{"it has 1 data blocks", put(72, 1)},
		{"it has 18446744073709551615 data blocks", put(72, 1<<64-1)},
		{"the salt has 65535 bytes", put(80, 0xffff)},
		{"it has 274877906945 data blocks", put(72, 1<<38+1)},
	} {
		tree := bytes.Clone(hashes)
		test.change(tree)

		err := verity.CheckRoot(bytes.NewReader(tree), 0, root)
		if !errors.Is(err, verity.ErrNoTree) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v, want it to say %q", err, test.says)
		}
	}

	// The superblock is not part of the root hash: only the data tells.
	longer := bytes.Clone(hashes)
	put(72, 1<<38)(longer)

	if err := verity.Check(t.Context(), bytes.NewReader(data), bytes.NewReader(longer), 0, root); err == nil {
		t.Error("a superblock with more data blocks passes")
	}

	for _, size := range []int{0, 511, 512, 4096, len(hashes) - 1} {
		if err := verity.CheckRoot(bytes.NewReader(hashes[:size]), 0, root); !errors.Is(err, verity.ErrNoTree) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}

	for _, hash := range []string{"", "ab", root + "00", strings.Repeat("g", 64), strings.Repeat("0", 64)} {
		if err := verity.CheckRoot(bytes.NewReader(hashes), 0, hash); !errors.Is(err, verity.ErrMismatch) {
			t.Errorf("root hash %q: %v", hash, err)
		}
	}
}

func FuzzCheck(f *testing.F) {
	data := noise(130 * veritytest.BlockSize)
	hashes, root := veritytest.Format(data, []byte("salt"))
	small := data[:2*veritytest.BlockSize]
	smallHashes, _ := veritytest.Format(small, nil)

	f.Add(hashes[:512], int64(0))
	f.Add(smallHashes, int64(0))
	f.Add(append(bytes.Clone(small), smallHashes...), int64(len(small)))
	f.Add([]byte("verity\x00\x00"), int64(0))

	wrong := hex.EncodeToString(make([]byte, 32))

	f.Fuzz(func(t *testing.T, hashes []byte, offset int64) {
		if offset < 0 {
			return
		}

		tree, err := verity.Open(bytes.NewReader(hashes), offset)
		if err != nil {
			return
		}

		if tree.Size() <= 0 || tree.DataSize() <= 0 {
			t.Errorf("sizes %d and %d", tree.Size(), tree.DataSize())
		}

		if err := verity.Check(t.Context(), bytes.NewReader(data), bytes.NewReader(hashes), offset, wrong); err == nil {
			t.Error("a root hash of zeros matches")
		}

		_ = tree.CheckRoot(root)
	})
}
