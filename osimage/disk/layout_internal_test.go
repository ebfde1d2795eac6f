package disk

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/osimage"
)

// Whatever sizes are asked for: a plan either is refused, or its partitions are aligned, in order, apart from each
// other, within the disk, and large enough.
func TestPlans(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		size := func(name string, most int64) int64 {
			return rapid.Int64Range(1, most).Draw(t, name)
		}
		choice := func(name string, most int64) int64 {
			return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, most)).Draw(t, name)
		}

		config := osimage.Config{
			Name: "labos", Version: "1", Architecture: rapid.SampledFrom(osimage.Architectures()).Draw(t, "arch"),
			RootHash: strings.Repeat("0123456789abcdef", 2) + strings.Repeat("a", 32),
			Contents: []osimage.Content{
				{Role: osimage.RoleUSR, RawSize: size("usr", 8*gib)},
				{Role: osimage.RoleUSRVerity, RawSize: size("verity", gib)},
				{Role: osimage.RoleUKI, RawSize: size("uki", 300*mib)},
				{Role: osimage.RoleLoader, RawSize: size("loader", mib)},
				{Role: osimage.RoleState, RawSize: size("state", gib)},
			},
		}
		sizes := Sizes{
			Disk: roundDown(choice("disk", 40*gib)), ESP: choice("esp", 4*gib), Slot: choice("slot", 10*gib),
			Verity: choice("verity size", gib),
		}

		sectorSize := rapid.SampledFrom(SectorSizes()).Draw(t, "sector size")

		made, err := newPlan(config, sizes, "seed", sectorSize)
		if err != nil {
			if sizes == (Sizes{}) {
				t.Fatalf("the defaults were refused: %v", err)
			}

			return
		}

		checkPlan(t, config, sizes, made)
	})
}

func checkPlan(t *rapid.T, config osimage.Config, sizes Sizes, made *plan) {
	next, ids := int64(alignment), map[string]bool{made.guid: true}

	for _, place := range made.partitions {
		if place.start != next || place.start%alignment != 0 || place.size%alignment != 0 || place.size <= 0 {
			t.Fatalf("%s is at %d with %d bytes, the one before ends at %d", place.label, place.start, place.size, next)
		}

		if content, ok := config.Content(place.role); ok && content.RawSize > place.size {
			t.Fatalf("%s has %d bytes for %d", place.label, place.size, content.RawSize)
		}

		if ids[place.id] {
			t.Fatalf("%s has the UUID of another", place.label)
		}

		ids[place.id] = true
		next += place.size
	}

	if next+tableRoom != made.size || sizes.Disk != 0 && sizes.Disk != made.size {
		t.Fatalf("the last partition ends at %d of %d", next, made.size)
	}

	uki, _ := config.Content(osimage.RoleUKI)
	if made.partitions[0].size < 3*uki.RawSize {
		t.Fatalf("the ESP has %d bytes, a UKI %d", made.partitions[0].size, uki.RawSize)
	}

	a, b := made.partitions[1:3], made.partitions[3:5]
	if a[0].size != b[0].size || a[1].size != b[1].size {
		t.Fatal("the slots differ")
	}
}

// Whoever opened the partial file before another one finished, and renamed, it holds the finished disk.
func TestTheFinishedDiskIsNotLocked(t *testing.T) {
	t.Parallel()

	for name, again := range map[string]bool{"renamed": false, "renamed, and begun again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()

			out, err := os.Create(filepath.Join(dir, ".disk.raw.partial"))
			if err != nil {
				t.Fatal(err)
			}

			t.Cleanup(func() { _ = out.Close() })

			if err := os.Rename(out.Name(), filepath.Join(dir, "disk.raw")); err != nil {
				t.Fatal(err)
			}

			if again {
				if err := os.WriteFile(out.Name(), nil, fileMode); err != nil {
					t.Fatal(err)
				}
			}

			if err := lockPartial(out); !errors.Is(err, osimage.ErrInvalid) {
				t.Errorf("got %v, want a refusal", err)
			}
		})
	}
}

// What the FAT driver has made of a file is compared with the image.
func TestFilesOfTheESPAreReadBack(t *testing.T) {
	t.Parallel()

	out, err := os.Create(filepath.Join(t.TempDir(), "disk.raw"))
	if err := errors.Join(err, out.Truncate(minESPSize)); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = out.Close() })

	fs, err := createFAT(&noted{File: out}, partition{size: minESPSize}, SectorSize512)
	if err != nil {
		t.Fatal(err)
	}

	made := &esp{fs: fs}
	if err := made.add("/FILE", strings.NewReader("contents")); err != nil {
		t.Fatal(err)
	}

	for text, want := range map[string]error{"contents": nil, "Contents": osimage.ErrWrongDigest} {
		sum := sha256.Sum256([]byte(text))

		err := made.check("/FILE", osimage.Content{RawDigest: "sha256:" + hex.EncodeToString(sum[:])})
		if !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", text, err, want)
		}
	}
}
