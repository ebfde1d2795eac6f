package faulty

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/agent/slots/dps"
)

const copyBytes = 4 << 10

// errFull is what Linux says on a full FAT.
var errFull = errors.New("no space left on device")

// clusters are a file's contents. Two names that a cut rename left share them.
type clusters struct {
	content []byte
	names   int
}

type fatFile struct {
	name string
	data *clusters
}

// fat is the boot partition. Keys are paths in lower case.
type fat struct {
	power    *Power
	capacity int64
	files    map[string]fatFile
	// pending is what a power cut may make of the effect that is under way: the first outcome is that nothing happened.
	pending []func()
	// renameLies makes renames return nil and do nothing.
	renameLies bool
}

var _ dps.BootFiles = (*fat)(nil)

func (f *fat) clone(power *Power) *fat {
	copied := &fat{power: power, capacity: f.capacity, files: map[string]fatFile{}}
	seen := map[*clusters]*clusters{}

	for key, file := range f.files {
		if seen[file.data] == nil {
			seen[file.data] = &clusters{content: bytes.Clone(file.data.content), names: file.data.names}
		}

		copied.files[key] = fatFile{name: file.name, data: seen[file.data]}
	}

	return copied
}

// settle decides what becomes of the effect that was under way.
func (f *fat) settle(fate Fate) {
	if len(f.pending) > 0 {
		f.pending[fate(len(f.pending))]()
	}

	f.pending = nil
}

// effect does something that has several outcomes when it is cut off. The last one is that all of it happened.
func (f *fat) effect(outcomes ...func()) error {
	if f.power.Off() {
		return ErrPowerCut
	}

	f.pending = outcomes
	if err := f.power.step(); err != nil {
		return err
	}

	f.settle(KeepEverything)

	return nil
}

// List returns the files of a directory.
func (f *fat) List(dir string) ([]dps.FileInfo, error) {
	if f.power.Off() {
		return nil, ErrPowerCut
	}

	var files []dps.FileInfo

	for _, key := range slices.Sorted(maps.Keys(f.files)) {
		if strings.EqualFold(path.Dir(key), dir) {
			file := f.files[key]
			files = append(files, dps.FileInfo{Name: path.Base(file.name), Size: int64(len(file.data.content))})
		}
	}

	return files, nil
}

// Open opens a file.
func (f *fat) Open(name string) (dps.BootFile, error) {
	if f.power.Off() {
		return nil, ErrPowerCut
	}

	file, ok := f.files[strings.ToLower(name)]
	if !ok {
		return nil, fmt.Errorf("opening %s: %w", name, fs.ErrNotExist)
	}

	return openFile{bytes.NewReader(file.data.content)}, nil
}

// Create writes a file in small pieces.
func (f *fat) Create(name string, content io.Reader) error {
	key := strings.ToLower(name)
	if _, ok := f.files[key]; ok {
		return fmt.Errorf("creating %s: %w", name, fs.ErrExist)
	}

	file := fatFile{name: name, data: &clusters{names: 1}}

	for {
		piece := make([]byte, copyBytes)
		n, err := io.ReadFull(content, piece)
		grown := append(bytes.Clone(file.data.content), piece[:n]...)

		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}

		if free, _ := f.Free(); int64(n) > free {
			return fmt.Errorf("writing %s: %w", name, errFull)
		}

		set := func(content []byte) func() {
			return func() {
				file.data.content = content
				f.files[key] = file
			}
		}

		// What was not synced may be lost, be there in length only, or be there.
		outcome := f.effect(
			func() { delete(f.files, key) }, set(nil), set(make([]byte, len(grown))), set(file.data.content), set(grown),
		)
		if outcome != nil {
			return outcome
		}

		if err != nil {
			return f.effect(set(make([]byte, len(grown))), set(grown))
		}
	}
}

// Rename renames a file.
func (f *fat) Rename(from, to string) error {
	oldKey, newKey := strings.ToLower(from), strings.ToLower(to)

	file, ok := f.files[oldKey]
	if !ok {
		return fmt.Errorf("renaming %s: %w", from, fs.ErrNotExist)
	}

	if _, ok := f.files[newKey]; ok {
		return fmt.Errorf("renaming %s to %s: %w", from, to, fs.ErrExist)
	}

	if f.renameLies {
		return nil
	}

	renamed := fatFile{name: to, data: file.data}

	return f.effect(
		func() {},
		func() { file.data.names = 2; f.files[newKey] = renamed },
		func() { delete(f.files, oldKey) },
		func() { delete(f.files, oldKey); f.files[newKey] = renamed },
	)
}

// Remove removes a file. When its clusters have another name they are free from now on, and that name's bytes are lost.
func (f *fat) Remove(name string) error {
	key := strings.ToLower(name)

	file, ok := f.files[key]
	if !ok {
		return nil
	}

	return f.effect(func() {}, func() {
		delete(f.files, key)

		if file.data.names > 1 {
			file.data.content = make([]byte, len(file.data.content))
		}
	})
}

// Free is the capacity without the files.
func (f *fat) Free() (int64, error) {
	free := f.capacity
	for _, file := range f.files {
		free -= int64(len(file.data.content))
	}

	return free, nil
}

// Close does nothing.
func (f *fat) Close() error { return nil }

type openFile struct{ *bytes.Reader }

// Close does nothing.
func (openFile) Close() error { return nil }
