package sign

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// appendTo adds a layer to the manifest with the tag, or to a new one.
func appendTo(
	ctx context.Context, store trust.Store, tag string, layer v1.Descriptor, data []byte,
) (trust.Update, error) {
	manifest, config, err := existing(ctx, store, tag)
	if err != nil {
		return trust.Update{}, err
	}

	// Some registries and tools want as many entries as there are layers. The layers are not compressed, so their
	// digests are those of the files in them.
	config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.Digest)
	config.History = append(config.History, v1.History{})

	configData, err := json.Marshal(config)
	if err != nil {
		return trust.Update{}, fmt.Errorf("writing the config: %w", err)
	}

	manifest.Config, err = describe(configData, types.OCIConfigJSON)
	if err != nil {
		return trust.Update{}, err
	}

	manifest.Layers = append(manifest.Layers, layer)

	added, err := newManifest(tag, manifest)
	if err != nil {
		return trust.Update{}, err
	}

	return trust.Update{
		Blobs:     []trust.Blob{{Descriptor: layer, Bytes: data}, {Descriptor: manifest.Config, Bytes: configData}},
		Manifests: []trust.NewManifest{added},
	}, nil
}

// existing reads the manifest with the tag and its config, or makes empty ones. What it cannot understand it refuses:
// others' signatures would be lost.
func existing(ctx context.Context, store trust.Store, tag string) (v1.Manifest, v1.ConfigFile, error) {
	config := v1.ConfigFile{RootFS: v1.RootFS{Type: "layers"}}

	found, err := store.Manifest(ctx, tag)
	if errors.Is(err, trust.ErrNotFound) {
		return v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1}, config, nil
	}

	if err != nil {
		return v1.Manifest{}, config, fmt.Errorf("reading the signatures that there are: %w", err)
	}

	manifest, err := v1.ParseManifest(bytes.NewReader(found.Bytes))

	switch {
	case err != nil:
		return v1.Manifest{}, config, notOurs(tag, "its manifest cannot be read", err)
	case manifest.MediaType != "" && manifest.MediaType != types.OCIManifestSchema1:
		return v1.Manifest{}, config, notOurs(tag, fmt.Sprintf("it is of the media type %q", manifest.MediaType), nil)
	case len(manifest.Layers) >= trust.MaxSignatures:
		return v1.Manifest{}, config, notOurs(tag, fmt.Sprintf("it has %d signatures already", len(manifest.Layers)), nil)
	case manifest.Config.Size > trust.MaxBlob:
		return v1.Manifest{}, config, notOurs(tag, fmt.Sprintf("its config has %d bytes", manifest.Config.Size), nil)
	}

	manifest.MediaType = types.OCIManifestSchema1

	data, err := store.Blob(ctx, manifest.Config)
	if err != nil {
		return v1.Manifest{}, config, fmt.Errorf("reading the config of the signatures that there are: %w", err)
	}

	// Whatever else made the config, nobody reads more of it than the list of layers.
	if err := json.Unmarshal(data, &config); err != nil || len(config.RootFS.DiffIDs) != len(manifest.Layers) {
		config = v1.ConfigFile{RootFS: v1.RootFS{Type: "layers"}}

		for _, layer := range manifest.Layers {
			config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, layer.Digest)
			config.History = append(config.History, v1.History{})
		}
	}

	return *manifest, config, nil
}

func notOurs(tag, detail string, cause error) error {
	return &trust.Error{
		Kind: trust.ErrMalformed, Subject: "tag " + tag, Detail: detail, Err: cause,
		Fix: "what is there would be lost: look at it, and remove the tag if it is of no use",
	}
}
