package gardenlinux

import (
	"bytes"
	"context"
	"fmt"
	"io"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/source"
)

// Parts are those of an image that OCI has found in a registry, for a copy of ours: with frames, and an index of chunks.
func Parts(image *osimage.Image) (*source.Parts, error) {
	manifest, err := v1.ParseManifest(bytes.NewReader(image.Manifest()))
	if err != nil || manifest.ArtifactType == osimage.ArtifactType {
		return nil, &osimage.Error{
			Kind: osimage.ErrInvalid, Subject: image.Reference(), Err: err, Detail: "it is an image already, and needs no import",
			Fix: "get it with `stayput image pull`",
		}
	}

	config := image.Config()
	parts := &source.Parts{
		Name: config.Name, Version: config.Version, Variant: config.Variant, Architecture: config.Architecture, Scheme: config.Scheme,
		Inputs: map[osimage.Role]osimage.Input{},
	}

	for _, content := range config.Contents {
		parts.Inputs[content.Role] = osimage.Input{
			Name: fmt.Sprintf("%s of %s", content.Role, image.Reference()), Size: content.RawSize,
			Open: func(ctx context.Context) (io.ReadCloser, error) { return image.Open(ctx, content.Role, 0) },
		}
	}

	for _, note := range [][2]string{{"flavour", annotationCname}, {"commit", "commit"}, {"features", "feature_set"}} {
		if text := manifest.Annotations[note[1]]; text != "" {
			parts.Notes = append(parts.Notes, note[0]+" "+text)
		}
	}

	return parts, nil
}
