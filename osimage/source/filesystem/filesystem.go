package filesystem

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ErrUnknown is returned for an image whose file system is none of those that are known.
var ErrUnknown = errors.New("no file system that can be read")

// ErrBroken is returned for a file system that contradicts itself, or uses what this package does not know.
var ErrBroken = errors.New("file system cannot be read")

const (
	// maxLinks bounds how many symbolic links a path may lead over.
	maxLinks = 8
	// maxLink bounds the target of a symbolic link, as Linux does (PATH_MAX).
	maxLink = 4096
	// maxDirectory bounds a directory; /usr/lib has some hundred entries.
	maxDirectory = 4 << 20
	// maxNodes bounds how many nodes of a tree one search reads; one for a directory of some thousand entries reads some
	// dozen.
	maxNodes = 4096
)

// volume is a file system. Its files have numbers, and the root is one of them.
type volume interface {
	kind() string
	size() int64
	root() (uint64, error)
	// child finds a name in a directory, 0 when it is not there.
	child(directory uint64, name string) (uint64, error)
	stat(file uint64) (stat, error)
	// read gives the content of a file of at most limit bytes.
	read(file uint64, limit int64) ([]byte, error)
}

type stat struct {
	mode uint32
	size int64
}

// The type of a file in its mode (stat(2)).
const (
	modeType = 0o170000
	modeDir  = 0o040000
	modeLink = 0o120000
	modeFile = 0o100000
)

func open(reader io.ReaderAt) (volume, error) {
	if found, err := openExt(reader); found != nil || err != nil {
		return found, err
	}

	if found, err := openBtrfs(reader); found != nil || err != nil {
		return found, err
	}

	return nil, ErrUnknown
}

// Identify tells which file system an image begins with, "ext" or "btrfs", and how many bytes that has. It returns
// ErrUnknown when it is another one.
func Identify(reader io.ReaderAt) (kind string, size int64, err error) {
	found, err := open(reader)
	if err != nil {
		return "", 0, err
	}

	return found.kind(), found.size(), nil
}

// ReadFile reads a file of at most limit bytes. The path begins at the file system's own root, also where a symbolic
// link leads to one. It returns fs.ErrNotExist when there is no such file.
func ReadFile(reader io.ReaderAt, path string, limit int64) ([]byte, error) {
	found, err := open(reader)
	if err != nil {
		return nil, err
	}

	content, err := readPath(found, path, limit)
	if err != nil {
		return nil, fmt.Errorf("reading %s from the %s file system: %w", path, found.kind(), err)
	}

	return content, nil
}

// path is how far a path was followed.
type path struct {
	volume

	names   []string // that are left
	current uint64
	parents []uint64
	links   int
}

func readPath(volume volume, name string, limit int64) ([]byte, error) {
	top, err := volume.root()
	if err != nil {
		return nil, err
	}

	way := &path{volume: volume, names: strings.Split(name, "/"), current: top}

	for len(way.names) > 0 {
		file, err := way.step()
		if err != nil {
			return nil, err
		}

		if file != 0 {
			return volume.read(file, limit)
		}
	}

	return nil, fs.ErrNotExist
}

// step follows the next name. It returns the file when it has come to it.
func (p *path) step() (uint64, error) {
	name := p.names[0]
	p.names = p.names[1:]

	switch name {
	case "", ".":
		return 0, nil
	case "..":
		if last := len(p.parents) - 1; last >= 0 {
			p.current, p.parents = p.parents[last], p.parents[:last]
		}

		return 0, nil
	}

	next, err := p.child(p.current, name)
	if err != nil {
		return 0, err
	}

	if next == 0 {
		return 0, fs.ErrNotExist
	}

	info, err := p.stat(next)
	if err != nil {
		return 0, err
	}

	switch kind := info.mode & modeType; {
	case kind == modeLink:
		return 0, p.follow(next)
	case kind == modeDir:
		p.parents = append(p.parents, p.current)
		p.current = next

		return 0, nil
	case kind == modeFile && len(p.names) == 0:
		return next, nil
	default:
		return 0, fs.ErrNotExist
	}
}

func (p *path) follow(link uint64) error {
	if p.links++; p.links > maxLinks {
		return broken("more than %d symbolic links", maxLinks)
	}

	target, err := p.read(link, maxLink)
	if err != nil {
		return err
	}

	p.names = append(strings.Split(string(target), "/"), p.names...)

	if strings.HasPrefix(string(target), "/") {
		p.parents = nil
		p.current, err = p.root()
	}

	return err
}

func broken(format string, values ...any) error {
	return fmt.Errorf("%w: %s", ErrBroken, fmt.Sprintf(format, values...))
}

// block reads from a place that a broken file system may have made up.
func block(reader io.ReaderAt, offset int64, length int) ([]byte, error) {
	data := make([]byte, length)

	if count, err := reader.ReadAt(data, offset); count < length {
		if errors.Is(err, io.EOF) {
			return nil, broken("there are no %d bytes at offset %d", length, offset)
		}

		return nil, fmt.Errorf("reading at offset %d: %w", offset, err)
	}

	return data, nil
}
