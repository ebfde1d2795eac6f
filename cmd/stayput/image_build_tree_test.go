package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/verity/veritytest"
)

// What does not belong together would be signed, rolled out, and found by the first boot that fails.
func TestImageBuildChecksTheHashTree(t *testing.T) {
	t.Parallel()

	old := pseudoRandom(130 * veritytest.BlockSize)
	newer := bytes.Clone(old)
	newer[40*veritytest.BlockSize+7] ^= 1

	oldTree, oldHash := veritytest.Format(old, []byte("salt"))
	newTree, newHash := veritytest.Format(newer, []byte("salt"))
	saltedTree, saltedHash := veritytest.Format(newer, []byte("other salt"))
	brokenTree := bytes.Clone(newTree)
	brokenTree[len(brokenTree)-1] ^= 1 // its last block, of the lowest level

	for name, test := range map[string]struct {
		usr, tree []byte
		rootHash  string
		says      []string // nil when it is right
	}{
		"right":                      {newer, newTree, newHash, nil},
		"right with another salt":    {newer, saltedTree, saltedHash, nil},
		"old tree":                   {newer, oldTree, newHash, []string{"--usr-verity ", oldHash, newHash}},
		"old tree and its hash":      {newer, oldTree, oldHash, []string{"--usr ", "data block at byte 163840 "}},
		"old file with the new tree": {old, newTree, newHash, []string{"--usr ", "data block at byte 163840 "}},
		"tree with another salt":     {newer, saltedTree, newHash, []string{"--usr-verity ", saltedHash, newHash}},
		"wrong root hash":            {newer, newTree, oldHash, []string{"--usr-verity ", newHash, oldHash}},
		"changed tree":               {newer, brokenTree, newHash, []string{"--usr ", "tree's block at byte 12288 "}},
		"short tree":                 {newer, newTree[:len(newTree)-1], newHash, []string{"--usr ", "block at byte 12288 cannot be read"}},
		"no tree":                    {newer, newer, newHash, []string{"--usr-verity ", "no dm-verity hash tree"}},
		"longer file":                {append(bytes.Clone(newer), 0), newTree, newHash, []string{"--usr ", "532481 bytes", "covers 532480"}},
		"shorter file":               {newer[:len(newer)-1], newTree, newHash, []string{"--usr ", "532479 bytes", "covers 532480"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			usr, tree, layout := save(t, "usr", test.usr), save(t, "usr-verity", test.tree), filepath.Join(t.TempDir(), "image")
			uki := save(t, "uki", faulty.UKI("labos", "1.0.0", "panic=5 usrhash="+test.rootHash))

			_, told, err := stayput(t, "image", "build", layout, "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
				"--root-hash", test.rootHash, "--usr", usr, "--usr-verity", tree, "--uki", uki)
			if _, statErr := os.Stat(layout); (err == nil) != (test.says == nil) || (statErr == nil) != (err == nil) {
				t.Fatalf("got %v, the folder: %v", err, statErr)
			}

			if err == nil {
				if !strings.Contains(told, "checking usr against its hash tree: 0.5 of 0.5 MiB (100%)") {
					t.Errorf("it told\n%s", told)
				}

				return
			}

			for _, part := range append(test.says, usr, tree, "veritysetup format "+usr+" "+tree) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %v, want an error that says %q", err, part)
				}
			}

			if !errors.Is(err, osimage.ErrInvalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestImageBuildNamesTheMissingHalf(t *testing.T) {
	t.Parallel()

	_, files := testFiles(t, "1.0.0")
	root := slices.Clone(files)
	root[0], root[2] = "--root", "--root-verity"

	for _, test := range []struct {
		files []string
		says  string
	}{
		{files[:2], "--usr-verity, is missing"},
		{files[2:4], "--usr, is missing"},
		{root[:2], "--root-verity, is missing"},
		{root[2:4], "--root, is missing"},
	} {
		_, _, err := stayput(t, append([]string{
			"image", "build", filepath.Join(t.TempDir(), "image"), "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
			"--root-hash", testRootHash, "--uki", files[5],
		}, test.files...)...)
		if !errors.Is(err, osimage.ErrInvalid) || !strings.Contains(err.Error(), test.says) ||
			!strings.HasPrefix(err.Error(), test.files[0]+" ") {
			t.Errorf("%v: got %v, want an error that says %q", test.files, err, test.says)
		}
	}
}

// Such an image is built, since a kernel may have the time in its configuration.
func TestImageBuildTellsOfNoPanic(t *testing.T) {
	t.Parallel()

	_, files := testFiles(t, "1.0.0")

	for commandLine, want := range map[string]int{
		"": 1, " panic": 1, " panic=0": 1, " quiet": 1, " panic=5 panic=0": 1, " panic=5": 0, " panic=-1": 0, " panic=0 panic=5": 0,
	} {
		_, told, err := stayput(t, append([]string{
			"image", "build", filepath.Join(t.TempDir(), "image"), "--name", "labos", "--version", "1.0.0", "--arch", "amd64",
			"--root-hash", testRootHash, "--uki", save(t, "uki", faulty.UKI("labos", "1.0.0", "usrhash="+testRootHash+commandLine)),
		}, files[:4]...)...)
		if err != nil || strings.Count(told, "panic=5 on its command line") != want {
			t.Errorf("%q: %v, it told\n%s", commandLine, err, told)
		}
	}
}
