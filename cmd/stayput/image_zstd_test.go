package main

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
)

// The program zstd changes the layers, and nothing of what is in them.
func TestZstdLevel(t *testing.T) {
	t.Parallel()

	_, flags := testFiles(t, "1.1.0")
	disk, _ := discoverableDisk(t)

	for name, command := range map[string]func(folder string) []string{
		"build": func(folder string) []string {
			return append([]string{
				"image", "build", folder, "--name", "labos", "--version", "1.1.0", "--arch", "amd64", "--root-hash", testRootHash,
			}, flags...)
		},
		"import": func(folder string) []string {
			return []string{"image", "import", disk, folder, "--name", "labos", "--version", "1.2.0"}
		},
	} {
		folder := filepath.Join(t.TempDir(), name)

		made := map[string]osimage.Config{}
		size := map[string]int64{}

		for _, level := range []string{"0", "1", "19"} {
			mustRun(t, append(command(folder+level), "--zstd-level", level)...)
			made[level] = inspectImage(t, folder+level).Config

			for number, content := range made[level].Contents {
				size[level] += content.Size

				if content.RawDigest != made["0"].Contents[number].RawDigest {
					t.Errorf("%s: level %s has another %s", name, level, content.Role)
				}
			}
		}

		if size["1"] <= size["19"] || size["0"] == size["1"] {
			t.Errorf("%s: sizes by level: %v", name, size)
		}

		_, _, err := stayput(t, append(command(folder), "--zstd-level", "23")...)
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), "zstd level 23: ") || !strings.Contains(err.Error(), "1 to 22") {
			t.Errorf("%s: level 23: %v", name, err)
		}
	}
}
