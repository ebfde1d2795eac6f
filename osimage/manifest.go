package osimage

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// load reads the config that the manifest names, and checks that both describe an image of ours.
func (i *Image) load(ctx context.Context, kinds []Foreign) error {
	if found, err := i.loadForeign(ctx, kinds); found || err != nil {
		return err
	}

	manifest, err := parseManifest(i.reference, i.manifest)
	if err != nil {
		return err
	}

	data, err := readBlob(ctx, i.blobs, configBlob(i.reference, manifest))
	if err != nil {
		return err
	}

	i.config, err = ParseConfig(data)
	if err != nil {
		return fmt.Errorf("reading the config of %s: %w", i.reference, err)
	}

	return i.matchLayers(manifest)
}

func configBlob(reference string, manifest *v1.Manifest) blob {
	return blob{digest: manifest.Config.Digest.String(), size: manifest.Config.Size, subject: "config of " + reference}
}

func parseManifest(subject string, data []byte) (*v1.Manifest, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(data))

	switch {
	case err != nil:
		return nil, notAnImage(subject, "the manifest cannot be read", err)
	case manifest.MediaType != types.OCIManifestSchema1:
		return nil, notAnImage(subject, fmt.Sprintf("the manifest's media type is %q", manifest.MediaType), nil)
	case manifest.ArtifactType != ArtifactType:
		return nil, notAnImage(subject, fmt.Sprintf("artifactType is %q, want %q", manifest.ArtifactType, ArtifactType), nil)
	case manifest.Config.MediaType != ConfigMediaType:
		return nil, notAnImage(subject,
			fmt.Sprintf("the config's media type is %q, want %q", manifest.Config.MediaType, ConfigMediaType), nil)
	case manifest.Config.Size > maxConfigSize:
		return nil, notAnImage(subject,
			fmt.Sprintf("the config has %d bytes, at most %d are read", manifest.Config.Size, maxConfigSize), nil)
	default:
		return manifest, nil
	}
}

// layer is what the config says about a layer of the manifest.
type layer struct {
	mediaType string
	blob      blob
	// title is the file name that generic tools give it.
	title string
}

// layers are what the manifest must have: the contents, then their chunk indexes in two parts, both in the config's order.
func (i *Image) layers() []layer {
	var contents, indexes []layer

	for _, content := range i.config.Contents {
		title := fmt.Sprintf("%s.%s", i.config.Label(), content.Role)
		contents = append(contents, layer{LayerMediaType, i.blobOf(content), title + ".zst"})

		if content.ChunkIndex != nil {
			indexes = append(indexes, layer{IndexMediaType, i.indexBlobOf(content), title + ".chunks"})

			if content.ChunkIndex.IDs != nil {
				indexes = append(indexes, layer{IDsMediaType, i.idsBlobOf(content), title + ".chunkids"})
			}
		}
	}

	return append(contents, indexes...)
}

// matchLayers makes sure that the manifest's layers are those of the config.
func (i *Image) matchLayers(manifest *v1.Manifest) error {
	wanted := i.layers()
	if len(wanted) != len(manifest.Layers) {
		return notAnImage(i.reference, fmt.Sprintf("the config has %d contents and chunk indexes, the manifest %d layers",
			len(wanted), len(manifest.Layers)), nil)
	}

	for index, want := range wanted {
		got := manifest.Layers[index]

		switch {
		case string(got.MediaType) != want.mediaType:
			return notAnImage(i.reference,
				fmt.Sprintf("layer %d has the media type %q, want %q", index, got.MediaType, want.mediaType), nil)
		case got.Digest.String() != want.blob.digest || got.Size != want.blob.size:
			return notAnImage(i.reference, fmt.Sprintf("layer %d is %s with %d bytes, the config says %s with %d bytes",
				index, got.Digest, got.Size, want.blob.digest, want.blob.size), nil)
		}
	}

	return nil
}

// readBlob reads a small blob into memory and verifies it. What a mirror has in another form is asked for at the registry.
func readBlob(ctx context.Context, from blobs, source blob) ([]byte, error) {
	if source.size < 0 {
		return nil, notAnImage(source.subject, fmt.Sprintf("its size is %d bytes", source.size), nil)
	}

	data, err := readBlobOnce(ctx, from, source)
	if mirrored, ok := from.(interface{ distrustMirrors() bool }); ok && HasOtherBytes(err) && mirrored.distrustMirrors() {
		return readBlobOnce(ctx, from, source)
	}

	return data, err
}

func readBlobOnce(ctx context.Context, from blobs, source blob) ([]byte, error) {
	body, err := from.open(ctx, source, 0, source.size)
	if err != nil {
		return nil, err
	}

	var data bytes.Buffer

	// The head of a chunk index is the largest.
	data.Grow(int(min(source.size, chunk.MaxHead)) + bytes.MinRead)

	_, err = data.ReadFrom(io.LimitReader(body, source.size))
	if err := errors.Join(err, body.Close()); err != nil {
		return nil, fmt.Errorf("reading the image: %w", err)
	}

	if got := digestOfBytes(data.Bytes()); got != source.digest {
		return nil, wrongDigest(source.subject, "blob", got, source.digest)
	}

	return data.Bytes(), nil
}
