package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

var (
	errUnknown = errors.New("unknown")
	errOutput  = errors.New("unexpected output")
)

type content = [sha256.Size]byte

// floor is what has to be moved at least, roughly: the files of a tree whose content the old one does not have, each once,
// as one tar, compressed by zstd -19.
func floor(ctx context.Context, oldTree, newTree string) (size int64, err error) {
	known, err := contents(oldTree)
	if err != nil {
		return 0, err
	}

	zstd := exec.CommandContext(ctx, "zstd", "-19", "-q", "-c")
	counter := &counter{}
	zstd.Stdout, zstd.Stderr = counter, os.Stderr

	input, err := zstd.StdinPipe()
	if err != nil {
		return 0, fmt.Errorf("starting zstd: %w", err)
	}

	if err := zstd.Start(); err != nil {
		return 0, fmt.Errorf("starting zstd: %w", err)
	}

	archive := tar.NewWriter(input)
	err = files(newTree, func(path string, info fs.FileInfo, sum content) error {
		if known[sum] {
			return nil
		}

		known[sum] = true

		return add(archive, path, info)
	})

	if err := errors.Join(err, archive.Close(), input.Close(), zstd.Wait()); err != nil {
		return 0, fmt.Errorf("compressing what changed: %w", err)
	}

	return counter.size, nil
}

func contents(tree string) (map[content]bool, error) {
	known := map[content]bool{}

	return known, files(tree, func(_ string, _ fs.FileInfo, sum content) error {
		known[sum] = true

		return nil
	})
}

// files calls each for every regular file that is not empty, in lexical order.
func files(tree string, each func(path string, info fs.FileInfo, sum content) error) error {
	return filepath.WalkDir(tree, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}

		info, err := entry.Info()
		if err != nil || info.Size() == 0 {
			return err
		}

		file, err := os.Open(path) //nolint:gosec // Nobody else writes to the tree.
		if err != nil {
			return fmt.Errorf("reading a tree: %w", err)
		}

		defer func() { _ = file.Close() }()

		sum := sha256.New()
		if _, err := io.Copy(sum, file); err != nil {
			return fmt.Errorf("reading a tree: %w", err)
		}

		return each(path, info, content(sum.Sum(nil)))
	})
}

func add(archive *tar.Writer, path string, info fs.FileInfo) error {
	header, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return fmt.Errorf("adding %s: %w", path, err)
	}

	if err := archive.WriteHeader(header); err != nil {
		return fmt.Errorf("adding %s: %w", path, err)
	}

	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("adding %s: %w", path, err)
	}

	defer func() { _ = file.Close() }()

	if _, err := io.Copy(archive, file); err != nil {
		return fmt.Errorf("adding %s: %w", path, err)
	}

	return nil
}

type counter struct {
	size int64
}

func (c *counter) Write(data []byte) (int, error) {
	c.size += int64(len(data))

	return len(data), nil
}
