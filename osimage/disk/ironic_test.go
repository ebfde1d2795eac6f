package disk_test

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage/registrytest"
)

const (
	ociIndex    = "application/vnd.oci.image.index.v1+json"
	ociManifest = "application/vnd.oci.image.manifest.v1+json"
)

// ironic finds the disk of a tag as OciImageService.identify_specific_image does (Ironic, ironic/common/image_service.py
// and oci_registry.py; also its documentation, "Use of an OCI Container Registry").
type ironic struct {
	registry *registrytest.Registry
	client   *http.Client
	// path is the repository's.
	path string
}

func newIronic(t *testing.T, registry *registrytest.Registry, path string) *ironic {
	t.Helper()

	authorities, err := os.ReadFile(registry.CAFile)
	if err != nil {
		t.Fatal(err)
	}

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authorities)

	return &ironic{registry: registry, path: path, client: &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}},
	}}
}

type ociEntry struct {
	Digest       string `json:"digest"`
	ArtifactType string `json:"artifactType"`
	Platform     struct {
		Architecture string `json:"architecture"`
	} `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

type ociLayer struct {
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	MediaType   string            `json:"mediaType"`
	Annotations map[string]string `json:"annotations"`
}

type ociDocument struct {
	Manifests    []ociEntry `json:"manifests"`
	Layers       []ociLayer `json:"layers"`
	ArtifactType string     `json:"artifactType"`
	Config       struct {
		MediaType string `json:"mediaType"`
	} `json:"config"`
	Tags []string `json:"tags"`
}

// chosen is what Ironic would deploy; the zero value when it finds nothing.
type chosen struct {
	manifest, blob, name, format string
	size                         int64
}

// get asks over HTTPS, which is the only way for Ironic.
func (i *ironic) get(t *testing.T, path, accept string) []byte {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"https://"+i.registry.Address+"/v2/"+i.path+"/"+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	request.SetBasicAuth(registrytest.User, i.registry.Password)
	request.Header.Set("Accept", accept)

	response, err := i.client.Do(request)
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = response.Body.Close() }()

	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s %v: %s", path, response.Status, err, body)
	}

	return body
}

func (i *ironic) document(t *testing.T, path, accept string) (result ociDocument) {
	t.Helper()

	if err := json.Unmarshal(i.get(t, path, accept), &result); err != nil {
		t.Fatal(err)
	}

	return result
}

// priorities orders the values of disktype by how the image reaches the machine.
func priorities(downloadSource string) map[string]int {
	if downloadSource == "local" {
		return map[string]int{"qcow2": 1, "qemu": 2, "raw": 3, "applehv": 4}
	}

	return map[string]int{"raw": 1, "applehv": 2, "qcow2": 3, "qemu": 4}
}

func architectures(cpu string) []string {
	switch cpu {
	case "x86_64", "amd64":
		return []string{"x86_64", "amd64"}
	case "aarch64", "arm64":
		return []string{"aarch64", "arm64"}
	default:
		return []string{cpu}
	}
}

// find is what happens to spec.image.url "oci://…:tag" for a machine.
func (i *ironic) find(t *testing.T, tag, downloadSource, cpu string) chosen {
	t.Helper()

	// A tag that is not listed is not looked up.
	if tags := i.document(t, "tags/list", ociIndex).Tags; !slices.Contains(tags, tag) {
		t.Fatalf("the tag %s is not among %v", tag, tags)
	}

	const last = 100

	order := priorities(downloadSource)
	priority := func(entry ociEntry) int {
		if value, ok := order[entry.Annotations["disktype"]]; ok {
			return value
		}

		return last
	}

	entries := i.document(t, "manifests/"+tag, ociIndex+", "+ociManifest).Manifests
	slices.SortStableFunc(entries, func(a, b ociEntry) int { return priority(a) - priority(b) })

	for _, entry := range entries {
		architecture := entry.Platform.Architecture
		if cpu != "" && architecture != "" && !slices.Contains(architectures(cpu), architecture) {
			continue
		}

		if _, known := order[entry.Annotations["disktype"]]; !known {
			continue
		}

		layers := i.document(t, "manifests/"+entry.Digest, ociManifest).Layers
		if len(layers) != 1 {
			continue
		}

		return i.choose(t, entry, layers[0])
	}

	return chosen{}
}

func (i *ironic) choose(t *testing.T, entry ociEntry, layer ociLayer) chosen {
	t.Helper()

	if strings.HasSuffix(layer.MediaType, "zstd") || strings.HasSuffix(layer.MediaType, "gzip") {
		t.Errorf("the layer would be decompressed: %s", layer.MediaType)
	}

	format := "qcow2"
	if disktype := entry.Annotations["disktype"]; disktype == "raw" || disktype == "applehv" {
		format = "raw"
	}

	return chosen{
		manifest: entry.Digest, blob: layer.Digest, size: layer.Size, format: format,
		name: layer.Annotations["org.opencontainers.image.title"],
	}
}

// pinned is what happens to spec.image.url "oci://…@sha256:…": the digest must be that of a manifest with one layer.
func (i *ironic) pinned(t *testing.T, digest string) chosen {
	t.Helper()

	layers := i.document(t, "manifests/"+digest, ociManifest).Layers
	if len(layers) != 1 {
		t.Fatalf("the manifest %s has %d layers, Ironic wants one", digest, len(layers))
	}

	return chosen{manifest: digest, blob: layers[0].Digest, size: layers[0].Size}
}

// download returns the SHA-256 of what the machine gets.
func (i *ironic) download(t *testing.T, found chosen) string {
	t.Helper()

	body := i.get(t, "blobs/"+found.blob, "*/*")
	if int64(len(body)) != found.size {
		t.Errorf("the blob has %d bytes, its layer says %d", len(body), found.size)
	}

	sum := sha256.Sum256(body)
	if got := "sha256:" + hex.EncodeToString(sum[:]); got != found.blob {
		t.Errorf("the blob %s has the digest %s", found.blob, got)
	}

	return hex.EncodeToString(sum[:])
}

// neverContainers makes sure that newer versions, which deploy bootc containers, take none of ours for one: they ask for
// manifests that are no artifacts.
func (i *ironic) neverContainers(t *testing.T, tag string) {
	t.Helper()

	for _, entry := range i.document(t, "manifests/"+tag, ociIndex).Manifests {
		manifest := i.document(t, "manifests/"+entry.Digest, ociManifest)
		if manifest.ArtifactType == "" || entry.ArtifactType != manifest.ArtifactType {
			t.Errorf("the entry %s is the artifact %q, its manifest %q", entry.Digest, entry.ArtifactType, manifest.ArtifactType)
		}

		if entry.Annotations["disktype"] != "" && manifest.Config.MediaType != "application/vnd.oci.empty.v1+json" {
			t.Errorf("the disk %s has the config %s", entry.Digest, manifest.Config.MediaType)
		}

		if entry.Annotations["disktype"] == "" && len(manifest.Layers) == 1 {
			t.Errorf("the image %s has one layer only: Ironic could take it for a disk", entry.Digest)
		}
	}
}

func (c chosen) String() string {
	return fmt.Sprintf("%s %s %s", c.format, c.name, c.manifest)
}
