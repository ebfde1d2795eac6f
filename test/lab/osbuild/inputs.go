package osbuild

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ImageID is the IMAGE_ID of the lab's OS.
const ImageID = "labos"

//go:embed all:base
var baseFiles embed.FS

//go:embed all:initrd
var initrdFiles embed.FS

//go:embed all:overlay
var overlayFiles embed.FS

// sources are this package's own: what they say about an image is an input like any other.
//
//go:embed *.go
var sources embed.FS

// Inputs are what the lab brings to a build.
type Inputs struct {
	// Cache is the folder that keeps what was built, such as ~/.cache/stayput-lab.
	Cache string
	// Kubelet, Containerd and Shim are programs on the host, for Linux and static.
	Kubelet, Containerd, Shim string
	// StateDir is a folder whose contents are added to the persistent root, such as what `stayput node install
	// --root` wrote; "" for none. All of it will belong to root.
	StateDir string
	// Log gets a line for each step; nil for none.
	Log func(line string)
}

// DefaultInputs are the programs at their places in the lab's cache.
func DefaultInputs(cache string) Inputs {
	return Inputs{
		Cache:      cache,
		Kubelet:    filepath.Join(cache, "kubernetes-v1.36.3", "kubelet"),
		Containerd: filepath.Join(cache, "containerd-v2.2.2", "containerd"),
		Shim:       filepath.Join(cache, "containerd-v2.2.2", "containerd-shim-runc-v2"),
	}
}

// kubeletPath is the kubelet, relative to /usr.
const kubeletPath = "bin/kubelet"

func (i Inputs) programs() map[string]string {
	return map[string]string{
		kubeletPath: i.Kubelet, "bin/containerd": i.Containerd, "bin/containerd-shim-runc-v2": i.Shim,
	}
}

func (i Inputs) logf(format string, arguments ...any) {
	if i.Log != nil {
		i.Log("osbuild: " + fmt.Sprintf(format, arguments...))
	}
}

// key is a short name for the inputs that were written to it.
type key struct{ digest io.Writer }

// keyOf runs write on a new key and gives its name: 16 hex digits.
func keyOf(write func(key) error) (string, error) {
	digest := sha256.New()
	if err := write(key{digest}); err != nil {
		return "", fmt.Errorf("hashing the inputs: %w", err)
	}

	return hex.EncodeToString(digest.Sum(nil)[:8]), nil
}

// text adds words; their borders count.
func (k key) text(words ...string) error {
	for _, word := range words {
		if _, err := fmt.Fprintf(k.digest, "%d:%s", len(word), word); err != nil {
			return fmt.Errorf("hashing: %w", err)
		}
	}

	return nil
}

// file adds a file's name and bytes.
func (k key) file(name string, open func() (io.ReadCloser, error)) error {
	file, err := open()
	if err != nil {
		return fmt.Errorf("hashing %s: %w", name, err)
	}

	digest := sha256.New()
	_, err = io.Copy(digest, file)

	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("hashing %s: %w", name, err)
	}

	return k.text(name, hex.EncodeToString(digest.Sum(nil)))
}

// tree adds a file system, without tests.
func (k key) tree(files fs.FS) error {
	return fs.WalkDir(files, ".", func(name string, item fs.DirEntry, err error) error { //nolint:wrapcheck // its own
		if err != nil || item.IsDir() || strings.HasSuffix(name, "_test.go") {
			return err
		}

		return k.file(name, func() (io.ReadCloser, error) { return files.Open(name) })
	})
}

// program adds a file of the host.
func (k key) program(name, file string) error {
	return k.file(name, func() (io.ReadCloser, error) { return os.Open(file) })
}
