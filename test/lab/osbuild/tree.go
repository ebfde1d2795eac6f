package osbuild

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// epoch is the time of every file, and of the builds: 2026-01-01. Nothing of an image depends on when it was built.
const epoch = 1767225600

const (
	modeDir     fs.FileMode = fs.ModeDir | 0o755
	modeFile    fs.FileMode = 0o644
	modeProgram fs.FileMode = 0o755
)

// entry is a file, folder or link of a tree.
type entry struct {
	mode     fs.FileMode
	uid, gid int
	// link is where a symbolic link leads.
	link string
	// data are a file's bytes; when source is set they are in that file of the host.
	data   []byte
	source string
	size   int64
}

// tree is a file system on paper: what is at each slash-separated path, without a leading slash. A later addition
// replaces an earlier one. It is written as a tar stream that depends on nothing else: not on time, order or owner of
// files on the host.
type tree map[string]entry

func (t tree) addFile(name string, mode fs.FileMode, data string) {
	t.addParents(name)
	t[name] = entry{mode: mode, data: []byte(data), size: int64(len(data))}
}

func (t tree) addDir(name string, mode fs.FileMode) {
	t.addParents(name)
	t[name] = entry{mode: mode | fs.ModeDir}
}

func (t tree) addLink(name, target string) {
	t.addParents(name)
	t[name] = entry{mode: fs.ModeSymlink | fs.ModePerm, link: target}
}

// addProgram takes a file of the host.
func (t tree) addProgram(name, source string) error {
	info, err := os.Stat(source)
	if err != nil {
		return fmt.Errorf("adding program %s: %w", name, err)
	}

	t.addParents(name)
	t[name] = entry{mode: modeProgram, source: source, size: info.Size()}

	return nil
}

func (t tree) addParents(name string) {
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, there := t[dir]; !there {
			t[dir] = entry{mode: modeDir}
		}
	}
}

// addFS takes all of an embedded file system; files below a bin folder are programs.
func (t tree) addFS(files fs.FS) error {
	err := fs.WalkDir(files, ".", func(name string, item fs.DirEntry, err error) error {
		if err != nil || item.IsDir() {
			return err
		}

		data, err := fs.ReadFile(files, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}

		mode := modeFile
		if strings.HasSuffix(path.Dir(name), "bin") {
			mode = modeProgram
		}

		t.addFile(name, mode, string(data))

		return nil
	})
	if err != nil {
		return fmt.Errorf("adding embedded files: %w", err)
	}

	return nil
}

// errSpecial refuses device nodes, sockets and pipes.
var errSpecial = errors.New("neither a file, a folder nor a link")

// addHost takes a folder of the host, with modes and owners, without what a pattern leaves out.
func (t tree) addHost(root string, exclude patterns) error {
	err := filepath.WalkDir(root, func(file string, item fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		name, err := filepath.Rel(root, file)
		if err != nil || name == "." {
			return err
		}

		if exclude.match(name) {
			if item.IsDir() {
				return filepath.SkipDir
			}

			return nil
		}

		found, err := hostEntry(file, item)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}

		t.addParents(name)
		t[name] = found

		return nil
	})
	if err != nil {
		return fmt.Errorf("adding the files of %s: %w", root, err)
	}

	return nil
}

func hostEntry(file string, item fs.DirEntry) (entry, error) {
	info, err := item.Info()
	if err != nil {
		return entry{}, fmt.Errorf("reading its attributes: %w", err)
	}

	found := entry{mode: info.Mode()}
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		found.uid, found.gid = int(owner.Uid), int(owner.Gid)
	}

	switch {
	case info.IsDir():
	case info.Mode().IsRegular():
		found.source, found.size = file, info.Size()
	case info.Mode()&fs.ModeSymlink != 0:
		found.link, err = os.Readlink(file)
		if err != nil {
			return entry{}, fmt.Errorf("reading the link: %w", err)
		}
	default:
		return entry{}, errSpecial
	}

	return found, nil
}

// writeTar writes the tree, ordered by name.
func (t tree) writeTar(to io.Writer) error {
	archive := tar.NewWriter(to)

	for _, name := range slices.Sorted(maps.Keys(t)) {
		if err := t[name].writeTo(archive, name); err != nil {
			return fmt.Errorf("packing %s: %w", name, err)
		}
	}

	if err := archive.Close(); err != nil {
		return fmt.Errorf("ending the tar stream: %w", err)
	}

	return nil
}

func (e entry) writeTo(archive *tar.Writer, name string) error {
	header := &tar.Header{
		Name: name, Mode: tarMode(e.mode), Uid: e.uid, Gid: e.gid, ModTime: time.Unix(epoch, 0), Format: tar.FormatGNU,
	}

	switch {
	case e.mode.IsDir():
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	case e.mode&fs.ModeSymlink != 0:
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	default:
		header.Typeflag, header.Size = tar.TypeReg, e.size
	}

	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("writing the header: %w", err)
	}

	if header.Typeflag != tar.TypeReg {
		return nil
	}

	if e.source == "" {
		_, err := archive.Write(e.data)
		return err //nolint:wrapcheck // the caller names the file
	}

	file, err := os.Open(e.source)
	if err != nil {
		return fmt.Errorf("reading: %w", err)
	}

	_, err = io.Copy(archive, file)

	return errors.Join(err, file.Close())
}

// tarMode gives the permission bits with set-user-ID, set-group-ID and sticky, as chmod(2) has them.
func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())

	for flag, bit := range map[fs.FileMode]int64{
		fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000,
	} {
		if mode&flag != 0 {
			bits |= bit
		}
	}

	return bits
}

// patterns are shell patterns (path.Match) of paths.
type patterns []string

// match tells whether a path, or a folder that it is in, fits a pattern.
func (p patterns) match(name string) bool {
	for ; name != "." && name != "/"; name = path.Dir(name) {
		for _, pattern := range p {
			if fits, err := path.Match(pattern, name); err == nil && fits {
				return true
			}
		}
	}

	return false
}

// lines gives the lines of an embedded list, without comments and empty lines.
func lines(list string) []string {
	var found []string

	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}

	return found
}
