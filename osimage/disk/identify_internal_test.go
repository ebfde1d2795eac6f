package disk

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source/rawdisk"
)

// FuzzQCOW2 reads the partition table of whatever calls itself a QCOW2 file.
func FuzzQCOW2(f *testing.F) {
	f.Add(seedQCOW2(f))
	f.Add(seedQCOW2(f)[:200])
	f.Add([]byte(qcowMagic))

	f.Fuzz(func(t *testing.T, data []byte) {
		size := int64(len(data))

		opened, err := openQCOW2(bytes.NewReader(data), size, "fuzz")
		if err != nil {
			if problem, ok := errors.AsType[*osimage.Error](err); !ok || problem.Fix == "" {
				t.Errorf("no fix: %v", err)
			}

			return
		}

		if disk, err := rawdisk.Read(opened, opened.Size(), "fuzz"); err == nil && disk.SectorSize == 0 {
			t.Error("a table without sectors")
		}
	})
}

// seedQCOW2 is a small file of ours: a megabyte with a byte in it.
func seedQCOW2(f *testing.F) []byte {
	f.Helper()

	dir := f.TempDir()

	raw, err := os.Create(filepath.Join(dir, "raw"))
	if err != nil {
		f.Fatal(err)
	}

	if err := errors.Join(raw.Truncate(mib), writeByte(raw)); err != nil {
		f.Fatal(err)
	}

	packed, err := convert(f.Context(), raw, filepath.Join(dir, "packed"))
	if err != nil {
		f.Fatal(err)
	}

	data, err := os.ReadFile(packed.Name())
	if err := errors.Join(err, raw.Close(), packed.Close()); err != nil {
		f.Fatal(err)
	}

	return data
}

func writeByte(raw *os.File) error {
	_, err := raw.WriteAt([]byte("EFI PART"), SectorSize512)

	return err
}
