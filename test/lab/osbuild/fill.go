package osbuild

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path/filepath"
	"strings"
)

const (
	// fillFolder is where the files go that fill /usr.
	fillFolder = "share/fill"
	// maxFillFile leaves out files of which a few would fill it all.
	maxFillFile = 64 << 20
	// fillBlock is the unit in which erofs keeps a file's bytes.
	fillBlock = 4 << 10
	// leftOut: each version leaves out one file in so many, each another one.
	leftOut = 4
)

var errFill = errors.New("not enough files to fill /usr with")

// fill adds regular files of a folder of the host, in the order of their paths, until the tree has as many bytes as the
// variant wants.
func (t tree) fill(root string, variant Variant) error {
	missing := variant.FillMiB<<20 - t.bytes()
	if missing <= 0 {
		return nil
	}

	err := filepath.WalkDir(root, func(file string, item fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		name := strings.TrimPrefix(file, root)
		if !item.Type().IsRegular() || variant.leavesOut(name) {
			return nil
		}

		found, err := hostEntry(file, item)
		if err != nil || found.size > maxFillFile {
			return err
		}

		found.uid, found.gid, found.mode = 0, 0, modeFile
		name = fillFolder + name
		t.addParents(name)
		t[name] = found

		if missing -= blocks(found.size); missing <= 0 {
			return fs.SkipAll
		}

		return nil
	})

	if err == nil && missing > 0 {
		err = fmt.Errorf("%w: %s lacks %d MiB of them", errFill, root, missing>>20) //nolint:mnd // bytes in a MiB, as a power of two
	}

	if err != nil {
		return fmt.Errorf("filling /usr up to %d MiB: %w", variant.FillMiB, err)
	}

	return nil
}

// leavesOut tells whether a version lacks a file. Any two versions share some three in four.
func (v Variant) leavesOut(name string) bool {
	sum := fnv.New32a()
	fmt.Fprintf(sum, "%s %s", v.Version, name)

	return sum.Sum32()%leftOut == 0
}

// bytes are what the tree's files have in a file system, without its own structures.
func (t tree) bytes() int64 {
	var sum int64
	for _, found := range t {
		sum += blocks(found.size)
	}

	return sum
}

func blocks(size int64) int64 { return (size + fillBlock - 1) / fillBlock * fillBlock }
