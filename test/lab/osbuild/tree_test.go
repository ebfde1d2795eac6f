package osbuild

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"pgregory.net/rapid"
)

// hostFolder makes a folder with a program, a link, a private folder and something to leave out.
func hostFolder(t *testing.T) string {
	t.Helper()

	root := t.TempDir()
	for _, step := range []error{
		os.MkdirAll(filepath.Join(root, "bin"), 0o755),
		os.WriteFile(filepath.Join(root, "bin", "tool"), []byte("tool"), 0o755),
		os.Chmod(filepath.Join(root, "bin", "tool"), 0o755|fs.ModeSetuid),
		os.Symlink("tool", filepath.Join(root, "bin", "alias")),
		os.MkdirAll(filepath.Join(root, "private"), 0o700),
		os.WriteFile(filepath.Join(root, "private", "key"), []byte("key"), 0o600),
		os.MkdirAll(filepath.Join(root, "share", "doc", "tool"), 0o755),
		os.WriteFile(filepath.Join(root, "share", "doc", "tool", "README"), nil, 0o644),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}

	return root
}

func TestTarOfHostFolder(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	files := tree{}
	g.Expect(files.addHost(hostFolder(t), patterns{"share/d*"})).To(gomega.Succeed())

	var archive bytes.Buffer

	g.Expect(files.writeTar(&archive)).To(gomega.Succeed())

	found := map[string]*tar.Header{}
	reader := tar.NewReader(&archive)

	for {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}

		g.Expect(err).NotTo(gomega.HaveOccurred())

		found[header.Name] = header
	}

	g.Expect(found).To(gomega.HaveLen(6))
	g.Expect(found["bin/tool"].Mode).To(gomega.Equal(int64(0o4755)))
	g.Expect(found["bin/tool"].Size).To(gomega.Equal(int64(4)))
	g.Expect(found["bin/alias"].Linkname).To(gomega.Equal("tool"))
	g.Expect(found["private/"].Mode).To(gomega.Equal(int64(0o700)))
	g.Expect(found["private/key"].Mode).To(gomega.Equal(int64(0o600)))
	g.Expect(found).To(gomega.HaveKey("share/"))

	for _, header := range found {
		g.Expect(header.ModTime).To(gomega.BeTemporally("==", time.Unix(epoch, 0)))
	}
}

// TestTarIsReproducible: two folders with the same files, made at different times, give the same bytes.
func TestTarIsReproducible(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	var archives [2]bytes.Buffer

	for i := range archives {
		root := hostFolder(t)
		g.Expect(os.Chtimes(filepath.Join(root, "bin", "tool"), time.Now(), time.Unix(int64(i), 0))).To(gomega.Succeed())

		files := tree{}
		g.Expect(files.addHost(root, nil)).To(gomega.Succeed())
		files.addFile("etc/added", 0o644, "added")
		g.Expect(files.writeTar(&archives[i])).To(gomega.Succeed())
	}

	g.Expect(archives[0].Bytes()).To(gomega.Equal(archives[1].Bytes()))
}

// TestParentsAreThere: a tar stream without the folders of its files would get them with modes of the tool's choice.
func TestParentsAreThere(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		files := tree{}
		for _, name := range rapid.SliceOf(rapid.StringMatching(`[ab](/[ab]){0,4}`)).Draw(t, "names") {
			files.addFile(name+"/file", 0o644, "")
		}

		for name := range files {
			if dir := filepath.Dir(name); dir != "." && !files[dir].mode.IsDir() {
				t.Fatalf("%s has no folder", name)
			}
		}
	})
}

func TestSpecialFilesAreRefused(t *testing.T) {
	t.Parallel()

	err := tree{}.addHost("/dev/pts", nil)
	gomega.NewWithT(t).Expect(err).To(gomega.MatchError(errSpecial))
}

func TestPatterns(t *testing.T) {
	t.Parallel()

	exclude := patterns{"share/doc", "bin/py*", "lib/[^hl]*"}
	for name, want := range map[string]bool{
		"share/doc": true, "share/doc/a/b": true, "share/docs": false, "bin/python3.13": true, "bin/sh": false,
		"lib/host": false, "lib/perl/x": true, "share": false,
	} {
		if exclude.match(name) != want {
			t.Errorf("match(%q) = %v, want %v", name, !want, want)
		}
	}
}
