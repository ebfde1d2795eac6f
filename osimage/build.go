package osimage

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	seekable "github.com/SaveTheRbtz/zstd-seekable-format-go/pkg"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// BuildSpec says what an image is made of.
type BuildSpec struct {
	// Name, Version, Architecture, MinSourceVersion and RootHash are those of Config.
	Name, Version, Architecture, MinSourceVersion, RootHash string
	// Files are the contents, by role.
	Files map[Role]string
	// Progress, when set, is called with the raw bytes of a content that are done.
	Progress func(role Role, done, total int64)
}

// Build makes an image from files in an OCI layout folder, which is created when needed and may hold other images. An
// image of the same version in it is replaced. The same files give the same digests with the same Stayput version.
func Build(ctx context.Context, dir string, spec BuildSpec) (*Image, error) {
	config := Config{
		Name: spec.Name, Version: spec.Version, Architecture: spec.Architecture,
		MinSourceVersion: spec.MinSourceVersion, Scheme: SchemeDPS, RootHash: spec.RootHash,
	}

	if err := checkSpec(config, spec.Files); err != nil {
		return nil, err
	}

	path, err := openLayoutForWriting(dir)
	if err != nil {
		return nil, err
	}

	for _, role := range Roles() {
		file, ok := spec.Files[role]
		if !ok {
			continue
		}

		content, err := addContent(ctx, dir, role, file, spec.Progress)
		if err != nil {
			return nil, fmt.Errorf("adding %s from %s: %w", role, file, err)
		}

		config.Contents = append(config.Contents, content)
	}

	digest, err := addManifest(path, config)
	if err != nil {
		return nil, err
	}

	return OpenLayout(ctx, dir, digest.String())
}

// checkSpec refuses what cannot become an image before any file is read in full.
func checkSpec(config Config, files map[Role]string) error {
	const anyDigest = "sha256:0000000000000000000000000000000000000000000000000000000000000000"

	for role, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("adding %s: %w", role, err)
		}

		if info.Mode().IsRegular() && info.Size() == 0 {
			return invalid(file, fmt.Sprintf("the file for %s is empty", role), "give the file that was built")
		}

		config.Contents = append(config.Contents,
			Content{Role: role, Digest: anyDigest, RawDigest: anyDigest, Size: 1, RawSize: 1})
	}

	return config.Validate()
}

// addContent compresses a file into a blob of the layout.
func addContent(
	ctx context.Context, dir string, role Role, file string, progress func(Role, int64, int64),
) (content Content, err error) {
	input, err := os.Open(file)
	if err != nil {
		return Content{}, fmt.Errorf("opening it: %w", err)
	}

	defer func() { err = errors.Join(err, input.Close()) }()

	total, err := input.Seek(0, io.SeekEnd)
	if err != nil {
		return Content{}, fmt.Errorf("finding its size: %w", err)
	}

	if _, err := input.Seek(0, io.SeekStart); err != nil {
		return Content{}, fmt.Errorf("reading it: %w", err)
	}

	output, err := os.CreateTemp(filepath.Dir(blobPath(dir, "sha256:0")), ".building-")
	if err != nil {
		return Content{}, fmt.Errorf("making a blob: %w", err)
	}

	// After the rename there is nothing to remove, so the error says nothing.
	defer func() { _ = os.Remove(output.Name()) }()

	content, err = compress(ctx, input, output, func(done int64) {
		if progress != nil {
			progress(role, done, total)
		}
	})
	if err := errors.Join(err, output.Chmod(blobMode), output.Close()); err != nil {
		return Content{}, err
	}

	content.Role = role

	if err := os.Rename(output.Name(), blobPath(dir, content.Digest)); err != nil {
		return Content{}, fmt.Errorf("naming the blob: %w", err)
	}

	return content, nil
}

const blobMode = 0o644

// compress writes input as zstd frames of frameSize raw bytes, followed by the seek table.
func compress(ctx context.Context, input io.Reader, output io.Writer, progress func(done int64)) (Content, error) {
	// One encoder and one frame at a time bound the memory; the result does not depend on the number of processors.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedDefault),
		zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true), zstd.WithWindowSize(frameSize))
	if err != nil {
		return Content{}, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	layer := &countingHash{hash: sha256.New()}
	raw := &countingHash{hash: sha256.New()}

	writer, err := seekable.NewWriter(io.MultiWriter(output, layer), encoder)
	if err != nil {
		return Content{}, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	buffer := make([]byte, frameSize)

	for ctx.Err() == nil {
		count, err := io.ReadFull(input, buffer)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return Content{}, fmt.Errorf("reading it: %w", err)
		}

		// A hash never returns an error.
		_, _ = raw.Write(buffer[:count])

		if _, err := writer.Write(buffer[:count]); err != nil {
			return Content{}, fmt.Errorf("writing the blob: %w", err)
		}

		progress(raw.count)

		if err != nil {
			break
		}
	}

	if err := errors.Join(ctx.Err(), writer.Close(), encoder.Close()); err != nil {
		return Content{}, fmt.Errorf("writing the blob: %w", err)
	}

	return Content{
		Digest: digestOf(layer.hash), Size: layer.count, RawDigest: digestOf(raw.hash), RawSize: raw.count,
	}, nil
}

// addManifest writes config and manifest and names the image in the index.
func addManifest(path layout.Path, config Config) (v1.Hash, error) {
	data, err := json.Marshal(config)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("writing the config: %w", err)
	}

	digest, size, err := writeSmallBlob(path, data)
	if err != nil {
		return v1.Hash{}, err
	}

	manifest := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: ArtifactType,
		Config: v1.Descriptor{MediaType: ConfigMediaType, Digest: digest, Size: size},
		Annotations: map[string]string{
			"org.opencontainers.image.title":   config.Name,
			"org.opencontainers.image.version": config.Version,
		},
	}

	for _, content := range config.Contents {
		hash, err := v1.NewHash(content.Digest)
		if err != nil {
			return v1.Hash{}, fmt.Errorf("writing the manifest: %w", err)
		}

		manifest.Layers = append(manifest.Layers, v1.Descriptor{
			MediaType: LayerMediaType, Digest: hash, Size: content.Size,
			// The title is the file name that generic tools give the layer.
			Annotations: map[string]string{"org.opencontainers.image.title": fmt.Sprintf("%s.%s.zst", config.Label(), content.Role)},
		})
	}

	data, err = json.Marshal(manifest)
	if err != nil {
		return v1.Hash{}, fmt.Errorf("writing the manifest: %w", err)
	}

	return addToLayout(path, config, data)
}

func writeSmallBlob(path layout.Path, data []byte) (v1.Hash, int64, error) {
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return v1.Hash{}, 0, fmt.Errorf("hashing a blob: %w", err)
	}

	if err := path.WriteBlob(digest, io.NopCloser(bytes.NewReader(data))); err != nil {
		return v1.Hash{}, 0, fmt.Errorf("writing a blob of %s: %w", path, err)
	}

	return digest, size, nil
}
