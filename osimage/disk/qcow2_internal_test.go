package disk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"pgregory.net/rapid"
)

// Whatever is in a raw disk, of whatever size in sectors: a reader that is not ours finds the same in the QCOW2 file.
func TestQCOW2HoldsTheRawDisk(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()

	rapid.Check(t, func(t *rapid.T) {
		size := rapid.Int64Range(1, 40*clusterSize/SectorSize512).Draw(t, "sectors") * SectorSize512
		want := make([]byte, size)

		raw, err := os.Create(filepath.Join(dir, "raw"))
		if err := errors.Join(err, raw.Truncate(size)); err != nil {
			t.Fatal(err)
		}

		defer func() { _ = raw.Close() }()

		for range rapid.IntRange(0, 6).Draw(t, "extents") {
			at := rapid.Int64Range(0, size-1).Draw(t, "at")
			length := min(rapid.Int64Range(1, 3*clusterSize).Draw(t, "length"), size-at)
			// A zero is data for the file system, and none for the format.
			copy(want[at:], bytes.Repeat([]byte{rapid.SampledFrom([]byte{0, 1, 255}).Draw(t, "byte")}, int(length)))

			if _, err := raw.WriteAt(want[at:at+length], at); err != nil {
				t.Fatal(err)
			}
		}

		packed, err := convert(t.Context(), raw, filepath.Join(dir, "packed"))
		if err != nil {
			t.Fatal(err)
		}

		defer func() { _ = packed.Close() }()

		checkRoundTrip(t, packed, want)
	})
}

func checkRoundTrip(t *rapid.T, packed *os.File, want []byte) {
	info, err := packed.Stat()
	if err != nil {
		t.Fatal(err)
	}

	opened, err := openQCOW2(packed, info.Size(), packed.Name())
	if err != nil {
		t.Fatal(err)
	}

	got := make([]byte, len(want))
	if _, err := opened.ReadAt(got, 0); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}

	if opened.Size() != int64(len(want)) || !bytes.Equal(got, want) {
		t.Fatalf("%d bytes were packed, and are %d now", len(want), opened.Size())
	}

	data := 0

	for start := 0; start < len(want); start += clusterSize {
		if piece := want[start:min(start+clusterSize, len(want))]; !bytes.Equal(piece, make([]byte, len(piece))) {
			data++
		}
	}

	// Header, L1, one L2 when there is data, refcount table and block.
	if got := int(info.Size() / clusterSize); got != 4+data+min(data, 1) {
		t.Fatalf("the file has %d clusters for %d with data", got, data)
	}
}
