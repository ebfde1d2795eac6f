package osbuild

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

var errLibrary = errors.New("a program lacks a library that base/exclude.txt leaves out")

var errRequired = errors.New("base/exclude.txt leaves out, or Debian no longer has, a required file")

// checkRequired refuses a /usr without a file of base/required.txt.
func (t tree) checkRequired() error {
	required, _ := baseFiles.ReadFile("base/required.txt")
	for _, name := range lines(string(required)) {
		if _, there := t[name]; !there {
			return fmt.Errorf("%w: /usr/%s", errRequired, name)
		}
	}

	return nil
}

// checkLibraries refuses a /usr in which a program or library needs a library that is not there. The lists of what to
// leave out are written by hand, and such a mistake would show only when the program runs.
func (t tree) checkLibraries() error {
	there := map[string]bool{}

	for name := range t {
		if strings.Contains(path.Base(name), ".so") {
			there[path.Base(name)] = true
		}
	}

	for _, name := range slices.Sorted(maps.Keys(t)) {
		needed, err := t[name].libraries()
		if err != nil {
			return fmt.Errorf("reading /usr/%s: %w", name, err)
		}

		for _, library := range needed {
			if !there[library] {
				return fmt.Errorf("%w: /usr/%s needs %s", errLibrary, name, library)
			}
		}
	}

	return nil
}

// libraries are those that the dynamic loader needs for a file; none when it is not an ELF file.
func (e entry) libraries() ([]string, error) {
	if !e.mode.IsRegular() {
		return nil, nil
	}

	var content io.ReaderAt = bytes.NewReader(e.data)

	if e.source != "" {
		file, err := os.Open(e.source)
		if err != nil {
			return nil, fmt.Errorf("opening: %w", err)
		}

		defer func() { _ = file.Close() }()

		content = file
	}

	magic := make([]byte, len(elf.ELFMAG))
	if _, err := content.ReadAt(magic, 0); err != nil || string(magic) != elf.ELFMAG {
		return nil, nil // shorter than the magic, so not ELF
	}

	binary, err := elf.NewFile(content)
	if err != nil {
		return nil, fmt.Errorf("reading as ELF: %w", err)
	}

	// Kernel modules and static programs need none, and say so with an error that is not one.
	needed, err := binary.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("reading its dynamic section: %w", err)
	}

	return needed, nil
}
