// Package signedimage makes small images for tests of those who verify signatures: it builds one, pushes it into a
// registrytest.Faulty and has it signed by keys that are made at run time.
package signedimage

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
	"github.com/stayput-dev/stayput/osimage/trust"
	"github.com/stayput-dev/stayput/osimage/trust/sign"
	"github.com/stayput-dev/stayput/osimage/trust/trusttest"
)

// Signer is a key pair.
type Signer struct {
	*sign.Signer

	// Public is the public key in PEM.
	Public string
}

// NewSigner makes a key pair.
func NewSigner(tb testing.TB) Signer {
	tb.Helper()

	key := trusttest.Ed25519(tb)
	signer, err := sign.ParseKey("my.key", trusttest.PrivatePEM(tb, key), nil)
	trusttest.Must(tb, err)

	return Signer{Signer: signer, Public: string(trusttest.PublicPEM(tb, key))}
}

// Repository is a repository of a registry in the process of the test.
type Repository struct {
	Registry *registrytest.Faulty

	client *osimage.Client
}

// New starts a registry.
func New(tb testing.TB) *Repository {
	tb.Helper()

	faulty := registrytest.StartFaulty(tb)
	client, err := osimage.NewClient(osimage.WithRootCAs(faulty.Roots))
	trusttest.Must(tb, err)

	return &Repository{Registry: faulty, client: client}
}

// Reference names a tag.
func (r *Repository) Reference(tag string) string { return r.Registry.Address + "/os/labos:" + tag }

// Push puts an image of a version under a tag and returns its reference by digest. The same version has the same digest.
func (r *Repository) Push(tb testing.TB, tag, version string) string {
	tb.Helper()

	dir, files := tb.TempDir(), map[osimage.Role]string{}

	for role, size := range map[osimage.Role]int{osimage.RoleUSR: 8192, osimage.RoleUSRVerity: 4096, osimage.RoleUKI: 4096} {
		files[role] = filepath.Join(dir, string(role))
		trusttest.Must(tb, os.WriteFile(files[role], []byte(strings.Repeat(string(role)+version, size)[:size]), 0o600))
	}

	inputs, err := osimage.FileInputs(files)
	trusttest.Must(tb, err)

	layout := filepath.Join(dir, "image")
	_, err = osimage.Build(tb.Context(), layout, osimage.BuildSpec{
		Name: "labos", Version: version, Architecture: runtime.GOARCH, RootHash: strings.Repeat("ab", 32), Inputs: inputs,
	})
	trusttest.Must(tb, err)

	resolved, err := r.client.Push(tb.Context(), layout, "", r.Reference(tag), nil)
	trusttest.Must(tb, err)

	return resolved.Reference
}

// Index puts an index with one image under a tag and returns its reference by digest.
func (r *Repository) Index(tb testing.TB, tag, image string) string {
	tb.Helper()

	store, entry := r.find(tb, image)
	entry.ArtifactType = osimage.ArtifactType
	entry.Platform = &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}

	data := trusttest.Marshal(tb, v1.IndexManifest{
		SchemaVersion: 2, MediaType: types.OCIImageIndex,
		Manifests: []v1.Descriptor{entry},
	})
	trusttest.Must(tb, store.Add(tb.Context(), trust.Update{Manifests: []trust.NewManifest{{
		Tag: tag, Descriptor: v1.Descriptor{MediaType: types.OCIImageIndex}, Bytes: data,
	}}}))

	repository, _, _ := strings.Cut(image, "@")

	return repository + "@" + trust.DigestOf(data)
}

// find returns where a reference by digest has its signatures, and what it names.
func (r *Repository) find(tb testing.TB, reference string) (osimage.SignatureStore, v1.Descriptor) {
	tb.Helper()

	store, err := r.client.Signatures(reference)
	trusttest.Must(tb, err)

	_, digest, _ := strings.Cut(reference, "@")
	manifest, err := store.Manifest(tb.Context(), digest)
	trusttest.Must(tb, err)

	hash, err := v1.NewHash(digest)
	trusttest.Must(tb, err)

	return store, v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: hash, Size: int64(len(manifest.Bytes))}
}

// Sign signs the image or the index of a reference by digest.
func (r *Repository) Sign(tb testing.TB, reference string, by Signer) {
	tb.Helper()

	store, artifact := r.find(tb, reference)

	update, err := by.Tag(tb.Context(), store, sign.Artifact{
		Name: "registry.example/os/labos", Descriptor: artifact,
	})
	trusttest.Must(tb, err)
	trusttest.Must(tb, store.Add(tb.Context(), update))
}
