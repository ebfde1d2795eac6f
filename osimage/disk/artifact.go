package disk

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	media "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// ArtifactType is that of a manifest with a disk in its only layer.
	ArtifactType = "application/vnd.stayput.os.disk.v1"

	// The empty config says, with ArtifactType, that the manifest is no container (OCI image-spec 1.1, "Guidance for an
	// Empty Descriptor").
	emptyMediaType = "application/vnd.oci.empty.v1+json"
	emptyConfig    = "{}"

	titleAnnotation   = "org.opencontainers.image.title"
	versionAnnotation = "org.opencontainers.image.version"
)

// layerMediaType must not end in zstd or gzip: by that Ironic decides whether to decompress.
func layerMediaType(format Format) media.MediaType {
	return media.MediaType("application/vnd.stayput.os.disk.v1+" + string(format))
}

// artifact is a disk as the registry library wants it: one layer. What is read of it is verified.
type artifact struct {
	file     *diskFile
	layer    v1.Descriptor
	manifest []byte
}

var (
	_ partial.CompressedImageCore = (*artifact)(nil)
	_ partial.CompressedLayer     = diskLayer{}
)

// newArtifact reads the whole file once, for its digest. It has no times and no local names, so the same disk of the
// same image gives the same digest.
func newArtifact(ctx context.Context, disk *diskFile, config osimage.Config) (v1.Image, error) {
	sum, err := sumOfSection(ctx, io.NewSectionReader(disk, 0, disk.size))
	if err != nil {
		return nil, fmt.Errorf("reading the disk %s: %w", disk.Name(), err)
	}

	result := &artifact{file: disk, layer: v1.Descriptor{
		MediaType: layerMediaType(disk.format), Size: disk.size, Digest: v1.Hash{Algorithm: "sha256", Hex: sum},
		Annotations: map[string]string{
			titleAnnotation: fmt.Sprintf("%s_%s.%s", config.Label(), config.Architecture, disk.format),
		},
	}}
	empty := sha256.Sum256([]byte(emptyConfig))

	result.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: media.OCIManifestSchema1, ArtifactType: ArtifactType,
		Config: v1.Descriptor{
			MediaType: emptyMediaType, Size: int64(len(emptyConfig)),
			Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(empty[:])},
		},
		Layers:      []v1.Descriptor{result.layer},
		Annotations: map[string]string{titleAnnotation: config.Name, versionAnnotation: config.Version},
	})
	if err != nil {
		return nil, fmt.Errorf("writing the manifest of the disk: %w", err)
	}

	return partial.CompressedToImage(result)
}

// RawManifest returns what newArtifact has made.
func (a *artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// RawConfigFile returns the empty config.
func (a *artifact) RawConfigFile() ([]byte, error) { return []byte(emptyConfig), nil }

// MediaType is the manifest's.
func (a *artifact) MediaType() (media.MediaType, error) { return media.OCIManifestSchema1, nil }

// LayerByDigest finds the only layer.
func (a *artifact) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if digest != a.layer.Digest {
		return nil, &osimage.Error{Kind: osimage.ErrNotFound, Subject: a.file.Name(), Detail: "it has no layer " + digest.String()}
	}

	return diskLayer{a}, nil
}

// diskLayer is the layer of an artifact.
type diskLayer struct{ *artifact }

func (l diskLayer) Digest() (v1.Hash, error)            { return l.layer.Digest, nil }
func (l diskLayer) Size() (int64, error)                { return l.layer.Size, nil }
func (l diskLayer) MediaType() (media.MediaType, error) { return l.layer.MediaType, nil }
func (l diskLayer) Descriptor() (*v1.Descriptor, error) { return &l.layer, nil }
func (l diskLayer) Compressed() (io.ReadCloser, error) {
	return &verified{layer: l, reader: io.NewSectionReader(l.file, 0, l.layer.Size), sum: sha256.New()}, nil
}

// verified hands out the last bytes of a disk only when all of them have its digest.
type verified struct {
	layer  diskLayer
	reader *io.SectionReader
	sum    hash.Hash
	count  int64
}

func (v *verified) Read(buffer []byte) (int, error) {
	count, err := v.reader.Read(buffer)
	v.count += int64(count)
	// A hash never returns an error.
	_, _ = v.sum.Write(buffer[:count])

	if v.count < v.layer.layer.Size && !errors.Is(err, io.EOF) {
		return count, err
	}

	if got := hex.EncodeToString(v.sum.Sum(nil)); got != v.layer.layer.Digest.Hex {
		return 0, &osimage.Error{
			Kind: osimage.ErrWrongDigest, Subject: v.layer.file.Name(),
			Detail: fmt.Sprintf("it has the SHA-256 %s now, and had %s", got, v.layer.layer.Digest.Hex),
			Fix:    "let nobody write to the file, and publish it again",
		}
	}

	return count, err
}

// Close leaves the file open for another try.
func (v *verified) Close() error { return nil }
