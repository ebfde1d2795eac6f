package gardenlinux_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
)

const version = "1877.3.0"

// hub is a registry that holds Garden Linux's artifacts as its tools push them.
type hub struct {
	server *httptest.Server

	mutex sync.Mutex
	// swap answers the request for a digest with other bytes.
	swap map[string][]byte
	// ranges are the ranges that were asked for; noRanges ignores them.
	ranges   []string
	noRanges bool
}

func newHub(t *testing.T) *hub {
	t.Helper()

	h := &hub{swap: map[string][]byte{}}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h.serve(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	h.server.Config.ErrorLog = log.New(io.Discard, "", 0)

	t.Cleanup(h.server.Close)

	return h
}

func (h *hub) serve(w http.ResponseWriter, r *http.Request) bool {
	h.mutex.Lock()
	defer h.mutex.Unlock()

	if r.Method != http.MethodGet {
		return true
	}

	if asked := r.Header.Get("Range"); asked != "" {
		h.ranges = append(h.ranges, asked)

		if h.noRanges {
			r.Header.Del("Range")
		}
	}

	data, found := h.swap[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	if found {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
	}

	return !found
}

func (h *hub) repository() string {
	return strings.TrimPrefix(h.server.URL, "https://") + "/gardenlinux/gardenlinux"
}

// manifest is something that remote.Put takes.
type manifest struct {
	data      []byte
	mediaType types.MediaType
}

func (m manifest) RawManifest() ([]byte, error)        { return m.data, nil }
func (m manifest) MediaType() (types.MediaType, error) { return m.mediaType, nil }

func (h *hub) put(t *testing.T, tag string, value any, mediaType types.MediaType) v1.Descriptor {
	t.Helper()

	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}

	reference, err := name.NewTag(h.repository() + ":" + tag)
	if err != nil {
		t.Fatal(err)
	}

	if err := remote.Put(reference, manifest{data, mediaType}, remote.WithTransport(h.server.Client().Transport)); err != nil {
		t.Fatal(err)
	}

	sum := sha256.Sum256(data)

	return v1.Descriptor{MediaType: mediaType, Size: int64(len(data)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

func (h *hub) layer(t *testing.T, content []byte, mediaType string) v1.Descriptor {
	t.Helper()

	repository, err := name.NewRepository(h.repository())
	if err != nil {
		t.Fatal(err)
	}

	layer := static.NewLayer(content, types.MediaType(mediaType))
	if err := remote.WriteLayer(repository, layer, remote.WithTransport(h.server.Client().Transport)); err != nil {
		t.Fatal(err)
	}

	digest, _ := layer.Digest()

	return v1.Descriptor{MediaType: types.MediaType(mediaType), Size: int64(len(content)), Digest: digest}
}

// flavour is one build, and how it is published.
type flavour struct {
	features, architecture string
	// cname is the annotation; it has one of several forms.
	cname string
	// files are the layers, by media type.
	files map[string][]byte
}

func usiFlavour(features, architecture, cname string) flavour {
	return flavour{features, architecture, cname, map[string][]byte{
		"application/io.gardenlinux.image.archive.format.raw": []byte("raw disk " + features),
		"application/io.gardenlinux.uki":                      system(features, architecture, version),
		"application/io.gardenlinux.release":                  []byte(osRelease(features, architecture, version)),
	}}
}

// push publishes a flavour and returns its entry in the index.
func (h *hub) push(t *testing.T, f flavour) v1.Descriptor {
	t.Helper()

	annotations := map[string]string{
		"version": version, "commit": "a1b2c3d4", "cname": f.cname, "architecture": f.architecture, "feature_set": "base",
	}
	value := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: annotations,
		Config: h.layer(t, []byte("{}"), "application/vnd.unknown.config.v1+json"),
	}

	for mediaType, content := range f.files {
		value.Layers = append(value.Layers, h.layer(t, content, mediaType))
	}

	entry := h.put(t, version+"-"+f.features+"-"+f.architecture, value, types.OCIManifestSchema1)
	entry.Platform = &v1.Platform{OS: "gardenlinux", OSVersion: version, Architecture: f.architecture}
	entry.Annotations = map[string]string{"cname": f.cname, "architecture": f.architecture, "feature_set": "base"}

	return entry
}

// publish pushes many flavours, with the names of one that begins like another, in the old and the new form.
func (h *hub) publish(t *testing.T) []v1.Descriptor {
	t.Helper()

	legacy := map[string][]byte{"application/io.gardenlinux.image.archive.format.raw": []byte("raw disk")}
	suffix := "-" + version + "-a1b2c3d4"

	// An ordinary container image is beside them.
	container := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: h.layer(t, []byte("{}"), "application/json")}
	entries := append(make([]v1.Descriptor, 0, 7), h.put(t, version+"-container", container, types.OCIManifestSchema1))

	for _, f := range []flavour{
		{"baremetal-gardener_prod", "amd64", "baremetal-gardener_prod-amd64" + suffix, legacy},
		usiFlavour(usi+"_tpm2", "amd64", usi+"_tpm2-amd64"+suffix),
		usiFlavour("baremetal-capi_usi", "amd64", "baremetal-capi_usi"),
		usiFlavour(usi, "arm64", usi+"-arm64"+suffix),
		usiFlavour(usi, "amd64", usi+"-amd64"+suffix),
		{"aws-gardener_prod", "amd64", "aws-gardener_prod-amd64-" + version, legacy},
	} {
		entries = append(entries, h.push(t, f))
	}

	h.index(t, entries)

	return entries
}

func (h *hub) index(t *testing.T, entries []v1.Descriptor) {
	t.Helper()
	h.put(t, version, v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: entries}, types.OCIImageIndex)
}

func (h *hub) open(t *testing.T, reference, cname string, options ...osimage.Option) (*osimage.Image, error) {
	t.Helper()

	pool := h.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs //nolint:forcetypeassert // httptest.

	return gardenlinux.Open(t.Context(), h.repository()+reference, cname, append([]osimage.Option{
		osimage.WithRootCAs(pool), osimage.WithArchitecture("amd64"),
		osimage.WithRetry(osimage.Retry{Tries: 2, First: time.Millisecond, Max: time.Millisecond}),
	}, options...)...)
}

func TestOpen(t *testing.T) {
	t.Parallel()

	h := newHub(t)
	entries := h.publish(t)

	for _, test := range []struct {
		reference, cname, architecture, variant string
		want                                    int // the entry
	}{
		{":" + version, usi, "amd64", usi, 5},
		{":" + version, usi + "-amd64", "amd64", usi, 5},
		{":" + version, usi + "-amd64-" + version, "amd64", usi, 5},
		{":" + version, "baremetal-gardener_usi_prod", "amd64", usi, 5},
		{":" + version, usi, "arm64", usi, 4},
		{":" + version, usi + "_tpm2", "amd64", usi + "_tpm2", 2},
		{":" + version, "baremetal-capi_usi", "amd64", "baremetal-capi_usi", 3},
		{":" + version, "baremetal-capi_usi-amd64-" + version, "amd64", "baremetal-capi_usi", 3},
		{":" + version + "-" + usi + "-amd64", "", "amd64", usi, 5},
		{"@" + entries[5].Digest.String(), "", "amd64", usi, 5},
		{"@" + entries[5].Digest.String(), usi, "amd64", usi, 5},
	} {
		image, err := h.open(t, test.reference, test.cname, osimage.WithArchitecture(test.architecture))
		if err != nil {
			t.Errorf("%s %s: %v", test.reference, test.cname, err)

			continue
		}

		config := image.Config()
		if image.Digest() != entries[test.want].Digest.String() || config.Architecture != test.architecture ||
			config.Name != "gardenlinux" || config.Variant != test.variant || config.Version != version || config.Scheme != osimage.SchemeUKI {
			t.Errorf("%s %s: %s, %+v", test.reference, test.cname, image.Digest(), config)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()

	h := newHub(t)
	entries := h.publish(t)

	for _, test := range []struct {
		reference, cname, architecture string
		kind                           error
		says                           string
	}{
		{":" + version, "", "amd64", osimage.ErrNotFound, `it has "baremetal-capi_usi", "` + usi + `-amd64`},
		{":" + version, "baremetal-gardener", "amd64", osimage.ErrNotFound, "no flavour has exactly"},
		{":" + version, "baremetal-gardener_prod_us", "amd64", osimage.ErrNotFound, "no flavour has exactly"},
		{":" + version, usi + "-arm64", "amd64", osimage.ErrNotFound, "no flavour has exactly"},
		{":" + version, usi + "-amd64-1877.4.0", "amd64", osimage.ErrNotFound, "no flavour has exactly"},
		{":" + version, "baremetal-gardener_prod", "amd64", osimage.ErrNotAnImage, "cannot be updated in place"},
		{":" + version, "aws-gardener_prod", "arm64", osimage.ErrNotFound, "no flavour has exactly"},
		{"@" + entries[5].Digest.String(), "baremetal-gardener_prod", "amd64", osimage.ErrNotAnImage, "is of the flavour"},
		{"@" + entries[5].Digest.String(), "", "arm64", osimage.ErrWrongArchitecture, "amd64"},
		{":none", usi, "amd64", osimage.ErrNotFound, ":none"},
	} {
		_, err := h.open(t, test.reference, test.cname, osimage.WithArchitecture(test.architecture))
		if !errors.Is(err, test.kind) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s %s: %v, want %v that says %q", test.reference, test.cname, err, test.kind, test.says)
		}
	}

	// Who does not know of Garden Linux is told what is missing, and its images are not copied into a folder of ours.
	image, err := h.open(t, ":"+version, usi)
	if err != nil {
		t.Fatal(err)
	}

	pool := h.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs //nolint:forcetypeassert // httptest.

	for _, option := range []osimage.Option{osimage.WithRootCAs(pool), osimage.WithForeign(gardenlinux.OCI{})} {
		client, err := osimage.NewClient(osimage.WithRootCAs(pool), option)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := client.Pull(t.Context(), image.Reference(), t.TempDir(), nil); err == nil {
			t.Error("it was pulled")
		}
	}
}

// What is read is the file that was built, from any place, and a node can write it.
func TestContents(t *testing.T) {
	t.Parallel()

	h := newHub(t)
	h.publish(t)

	want := system(usi, "amd64", version)

	image, err := h.open(t, ":"+version, usi)
	if err != nil {
		t.Fatal(err)
	}

	for _, noRanges := range []bool{false, true} {
		for _, offset := range []int64{0, 1, 300_000, int64(len(want))} {
			h.mutex.Lock()
			h.noRanges, h.ranges = noRanges, nil
			h.mutex.Unlock()

			body, err := image.Open(t.Context(), osimage.RoleUKI, offset)
			if err != nil {
				t.Fatal(err)
			}

			if got, err := io.ReadAll(body); err != nil || !bytes.Equal(got, want[offset:]) {
				t.Errorf("from byte %d, no ranges %v: %d bytes, want %d, %v", offset, noRanges, len(got), len(want)-int(offset), err)
			}

			if err := body.Close(); err != nil {
				t.Error(err)
			}

			h.mutex.Lock()
			if inside := offset > 0 && offset < int64(len(want)); !noRanges && inside != (len(h.ranges) == 1) {
				t.Errorf("from byte %d: ranges %v", offset, h.ranges)
			}
			h.mutex.Unlock()
		}
	}

	target, err := os.Create(filepath.Join(t.TempDir(), "system.efi"))
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = target.Close() }()

	// Twice: the second time something is there already.
	for range 2 {
		if err := osimage.Write(t.Context(), image, osimage.RoleUKI, target, osimage.WriteOptions{Resume: true}); err != nil {
			t.Fatal(err)
		}
	}

	if got, err := os.ReadFile(target.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes were written, %v", len(got), err)
	}
}

func TestTampering(t *testing.T) {
	t.Parallel()

	content := system(usi, "amd64", version)
	other := bytes.Clone(content)
	other[len(other)/2] ^= 1

	digest := func(data []byte) string {
		sum := sha256.Sum256(data)

		return "sha256:" + hex.EncodeToString(sum[:])
	}

	for name, tamper := range map[string]func(h *hub, entries []v1.Descriptor){
		"a layer":         func(h *hub, _ []v1.Descriptor) { h.swap[digest(content)] = other },
		"a longer layer":  func(h *hub, _ []v1.Descriptor) { h.swap[digest(content)] = append(bytes.Clone(content), 0) },
		"a shorter layer": func(h *hub, _ []v1.Descriptor) { h.swap[digest(content)] = content[:len(content)-1] },
		"the release file": func(h *hub, _ []v1.Descriptor) {
			h.swap[digest([]byte(osRelease(usi, "amd64", version)))] = []byte("ID=x")
		},
		"the manifest": func(h *hub, entries []v1.Descriptor) {
			h.swap[entries[5].Digest.String()] = []byte(`{"schemaVersion":2}`)
		},
		// The index is not signed: it may say that another flavour is this one.
		"the index": func(h *hub, entries []v1.Descriptor) {
			entries[5].Digest, entries[5].Size = entries[3].Digest, entries[3].Size
			h.index(t, entries)
		},
		"the index's architecture": func(h *hub, entries []v1.Descriptor) {
			entries[5].Digest, entries[5].Size = entries[4].Digest, entries[4].Size
			h.index(t, entries)
		},
	} {
		h := newHub(t)
		entries := h.publish(t)
		tamper(h, entries)

		image, err := h.open(t, ":"+version, usi)
		if err == nil {
			err = readAll(t, image)
		}

		if err == nil {
			t.Errorf("%s was changed, and nothing noticed", name)
		}
	}
}

func readAll(t *testing.T, image *osimage.Image) error {
	t.Helper()

	body, err := image.Open(t.Context(), osimage.RoleUKI, 0)
	if err != nil {
		return err
	}

	_, err = io.Copy(io.Discard, body)

	return errors.Join(err, body.Close())
}

func TestOddManifests(t *testing.T) {
	t.Parallel()

	whole := usiFlavour(usi, "amd64", usi).files
	uki, release := "application/io.gardenlinux.uki", "application/io.gardenlinux.release"
	with := func(text string) map[string][]byte { return map[string][]byte{uki: whole[uki], release: []byte(text)} }

	for _, test := range []struct {
		name         string
		architecture string
		cname        string
		files        map[string][]byte
		says         string // "" when it is fine
	}{
		{"without a release file", "amd64", usi, map[string][]byte{uki: whole[uki]}, ""},
		{"as .efi", "amd64", usi, map[string][]byte{"application/io.gardenlinux.efi": whole[uki]}, ""},
		{"of another flavour's file", "amd64", usi, with(osRelease("baremetal_usi", "amd64", version)), "flavour"},
		{"of another version's file", "amd64", usi, with(osRelease(usi, "amd64", "1")), "IMAGE_VERSION"},
		{"of another architecture", "riscv64", usi, map[string][]byte{uki: whole[uki]}, "made for \"riscv64\""},
		{"with a name that is none", "amd64", "../" + usi, whole, "../"},
		{"with a huge release file", "amd64", usi, with(strings.Repeat("#", 2<<20)), "at most"},
	} {
		h := newHub(t)
		entry := h.push(t, flavour{usi, test.architecture, test.cname, test.files})

		_, err := h.open(t, "@"+entry.Digest.String(), usi)
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want it to say %q", test.name, err, test.says)
		}
	}
}

func TestAmbiguousIndex(t *testing.T) {
	t.Parallel()

	h := newHub(t)
	entries := h.publish(t)
	h.index(t, append(entries, h.push(t, usiFlavour(usi, "amd64", usi))))

	if _, err := h.open(t, ":"+version, usi); err == nil || !strings.Contains(err.Error(), "2 entries") {
		t.Error(err)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"sha256:`+strings.Repeat("0", 64)+
		`","platform":{"architecture":"amd64","os.version":"1"},"annotations":{"cname":"baremetal_usi-amd64-1"}},{}]}`), "baremetal_usi")
	f.Add([]byte(`{"manifests":[{"annotations":{"cname":""}}],"layers":[{"mediaType":"application/io.gardenlinux.uki"}],`+
		`"annotations":{"cname":"x_usi"}}`), "")

	f.Fuzz(func(t *testing.T, data []byte, cname string) {
		kind := gardenlinux.OCI{Cname: cname}

		var index v1.IndexManifest
		if json.Unmarshal(data, &index) == nil {
			if entry, found, err := kind.Choose("index", &index, "amd64"); err == nil && found && entry.Annotations["cname"] == "" {
				t.Errorf("%+v", entry)
			}
		}

		var manifest v1.Manifest
		if json.Unmarshal(data, &manifest) == nil {
			_, _, _ = kind.Config(t.Context(), "manifest", &manifest, func(v1.Descriptor) ([]byte, error) { return data, nil })
		}
	})
}
