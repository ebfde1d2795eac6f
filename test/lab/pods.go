package lab

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	podRepository = "lab/pause"
	podTag        = "1"
	podProgram    = "/pause"
	programMode   = 0o755

	// PodImage is an image that does nothing until it is told to end, as the guests' containerd asks for it: for the
	// sandbox of every pod, and for pods that stand for a workload.
	PodImage = ImageRegistry + "/" + podRepository + ":" + podTag
)

// pushPodImage builds the image of the lab's pods and pushes it. Without it no pod starts.
func (l *Lab) pushPodImage(ctx context.Context) error {
	program, err := l.buildPodProgram(ctx)
	if err != nil {
		return err
	}

	image, err := podImage(program)
	if err != nil {
		return fmt.Errorf("packing the image of the pods: %w", err)
	}

	_, err = l.Registry.Push(ctx, podRepository, podTag, image)

	return err
}

// buildPodProgram compiles test/lab/pause and returns the program.
func (l *Lab) buildPodProgram(ctx context.Context) ([]byte, error) {
	work, err := os.MkdirTemp(l.dir, ".pause-")
	if err != nil {
		return nil, fmt.Errorf("making a folder for the pods' program: %w", err)
	}
	defer os.RemoveAll(work)

	out := filepath.Join(work, "pause")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", out, "./test/lab/pause")
	cmd.Dir = l.root
	// The image is for the guests' architecture and has nothing but this program in it.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "GOOS=linux", "GOARCH=amd64")

	if output, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the pods' program: %w\n%s", err, output)
	}

	program, err := os.ReadFile(out)
	if err != nil {
		return nil, fmt.Errorf("reading the pods' program: %w", err)
	}

	return program, nil
}

// podImage is an image of one layer with one file, the program.
func podImage(program []byte) (v1.Image, error) {
	var files bytes.Buffer

	archive := tar.NewWriter(&files)
	header := &tar.Header{Name: podProgram[1:], Mode: programMode, Size: int64(len(program)), Typeflag: tar.TypeReg}

	if err := archive.WriteHeader(header); err != nil {
		return nil, fmt.Errorf("archiving the program: %w", err)
	}

	if _, err := archive.Write(program); err != nil {
		return nil, fmt.Errorf("archiving the program: %w", err)
	}

	if err := archive.Close(); err != nil {
		return nil, fmt.Errorf("archiving the program: %w", err)
	}

	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(files.Bytes())), nil
	})
	if err != nil {
		return nil, fmt.Errorf("making the layer: %w", err)
	}

	described, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux", RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{Entrypoint: []string{podProgram}},
	})
	if err != nil {
		return nil, fmt.Errorf("describing the image: %w", err)
	}

	image, err := mutate.AppendLayers(described, layer)
	if err != nil {
		return nil, fmt.Errorf("adding the layer: %w", err)
	}

	return image, nil
}
