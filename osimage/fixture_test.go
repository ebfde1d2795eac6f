package osimage_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/stayput-dev/stayput/osimage"
)

const rootHash = "4f2e1c0a4f2e1c0a4f2e1c0a4f2e1c0a4f2e1c0a4f2e1c0a4f2e1c0a4f2e1c0a"

// usrSize makes a content of three frames, the last one short.
const usrSize = 2*4<<20 + 123457

// randomBytes gives the same bytes for the same seed, half of them compressible.
func randomBytes(seed uint64, size int) []byte {
	source := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, size)

	for start := 0; start < size; start += 4096 {
		block := data[start:min(start+4096, size)]
		for i := range len(block) / 2 {
			block[i] = byte(source.Uint32())
		}
	}

	return data
}

// noise gives bytes that cannot be compressed.
func noise(seed byte, size int) []byte {
	data := make([]byte, size)
	// It never returns an error.
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)

	return data
}

// contents are the raw bytes of an image, by role.
type contents map[osimage.Role][]byte

func someContents() contents {
	return contents{
		osimage.RoleUSR:       randomBytes(1, usrSize),
		osimage.RoleUSRVerity: randomBytes(2, 70000),
		osimage.RoleUKI:       randomBytes(3, 300001),
	}
}

func spec(t *testing.T, parts contents) osimage.BuildSpec {
	t.Helper()

	inputs, err := osimage.FileInputs(parts.files(t))
	if err != nil {
		t.Fatal(err)
	}

	return osimage.BuildSpec{Name: "labos", Version: "1.1.0", Architecture: "amd64", RootHash: rootHash, Inputs: inputs}
}

// files writes the contents to files.
func (c contents) files(t *testing.T) map[osimage.Role]string {
	t.Helper()

	files := map[osimage.Role]string{}
	dir := t.TempDir()

	for role, data := range c {
		files[role] = filepath.Join(dir, string(role))
		if err := os.WriteFile(files[role], data, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return files
}

// someFolder is the folder with the image of someContents, which most tests begin with. It is built once: compressing takes most
// of the time.
//
//nolint:gochecknoglobals // Nothing else lives as long as all tests.
var someFolder = sync.OnceValues(func() (fstest.MapFS, error) {
	dir, err := os.MkdirTemp("", "stayput-image-")
	if err != nil {
		return nil, err
	}

	inputs := map[osimage.Role]osimage.Input{}
	for role, data := range someContents() {
		inputs[role] = osimage.Input{Name: string(role), Size: int64(len(data)), Open: func(context.Context) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}}
	}

	spec := osimage.BuildSpec{Name: "labos", Version: "1.1.0", Architecture: "amd64", RootHash: rootHash, Inputs: inputs}
	_, err = osimage.Build(context.Background(), dir, spec)
	files := fstest.MapFS{}

	err = errors.Join(err, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = &fstest.MapFile{Data: data, Mode: 0o600}

		return err
	}))

	return files, errors.Join(err, os.RemoveAll(dir))
})

// build makes an image and returns the layout folder.
func build(t *testing.T, parts contents) string {
	t.Helper()

	dir := filepath.Join(t.TempDir(), "image")

	if maps.EqualFunc(parts, someContents(), bytes.Equal) {
		files, err := someFolder()
		if err != nil {
			t.Fatal(err)
		}

		if err := os.CopyFS(dir, files); err != nil {
			t.Fatal(err)
		}

		return dir
	}

	if _, err := osimage.Build(t.Context(), dir, spec(t, parts)); err != nil {
		t.Fatal(err)
	}

	return dir
}

// faults is a registry with TLS that misbehaves on request.
type faults struct {
	server *httptest.Server

	mutex sync.Mutex
	// breakAfter cuts every answer with a blob after so many bytes; 0 does not.
	breakAfter int
	// breaks is how often that happens.
	breaks int
	// noRanges ignores Range headers; statusForRange answers them with a status.
	noRanges       bool
	statusForRange int
	// otherRange answers with a range that starts elsewhere.
	otherRange string
	// mutate changes a blob.
	mutate func(digest string, data []byte) []byte
	// status answers blob requests with a status, so many times.
	status, statuses int
	// served counts the bytes of blobs, and requests the requests for them.
	served, requests int
}

func newFaults(t *testing.T) *faults {
	t.Helper()

	f := &faults{}
	inner := registry.New(registry.Logger(discardLogger()))
	f.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/sha256:") {
			f.blob(inner, w, r)

			return
		}

		inner.ServeHTTP(w, r)
	}))
	f.server.Config.ErrorLog = discardLogger()

	t.Cleanup(f.server.Close)

	return f
}

func (f *faults) blob(inner http.Handler, w http.ResponseWriter, r *http.Request) {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	f.requests++

	if f.statuses > 0 {
		f.statuses--
		w.WriteHeader(f.status)

		return
	}

	ranged := r.Header.Get("Range")
	r.Header.Del("Range")

	recorder := httptest.NewRecorder()
	inner.ServeHTTP(recorder, r)

	data := recorder.Body.Bytes()
	if f.mutate != nil {
		data = f.mutate(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:], data)
	}

	if ranged != "" && f.statusForRange != 0 {
		w.WriteHeader(f.statusForRange)

		return
	}

	if ranged != "" && !f.noRanges {
		r.Header.Set("Range", cmp.Or(f.otherRange, ranged))
	}

	out := &cutWriter{ResponseWriter: w, faults: f}
	http.ServeContent(out, r, "", time.Time{}, bytes.NewReader(data))
}

// cutWriter breaks the connection in the middle of an answer.
type cutWriter struct {
	http.ResponseWriter

	faults *faults
	sent   int
}

func (c *cutWriter) Write(data []byte) (int, error) {
	if c.faults.breakAfter > 0 && c.faults.breaks > 0 && c.sent+len(data) > c.faults.breakAfter {
		c.faults.breaks--
		n, _ := c.ResponseWriter.Write(data[:c.faults.breakAfter-c.sent])
		c.faults.served += n

		if flusher, ok := c.ResponseWriter.(http.Flusher); ok {
			flusher.Flush()
		}

		panic(http.ErrAbortHandler)
	}

	n, err := c.ResponseWriter.Write(data)
	c.sent += n
	c.faults.served += n

	return n, err
}

func (f *faults) set(change func(f *faults)) {
	f.mutex.Lock()
	defer f.mutex.Unlock()

	change(f)
}

func (f *faults) reference(tag string) string {
	return strings.TrimPrefix(f.server.URL, "https://") + "/os/labos:" + tag
}

// client makes a client that trusts the registry and does not wait long between tries.
func (f *faults) client(t *testing.T, options ...osimage.Option) *osimage.Client {
	t.Helper()

	pool := f.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs //nolint:forcetypeassert // httptest.
	all := append([]osimage.Option{
		osimage.WithRootCAs(pool),
		osimage.WithRetry(osimage.Retry{Tries: 3, First: time.Millisecond, Max: time.Millisecond}),
	}, options...)

	client, err := osimage.NewClient(all...)
	if err != nil {
		t.Fatal(err)
	}

	return client
}

// push puts an image into the registry and opens it there.
func (f *faults) push(t *testing.T, parts contents, options ...osimage.Option) *osimage.Image {
	t.Helper()

	if _, err := f.client(t).Push(t.Context(), build(t, parts), "", f.reference("1.1.0"), nil); err != nil {
		t.Fatal(err)
	}

	image, err := f.client(t, options...).Image(t.Context(), f.reference("1.1.0"))
	if err != nil {
		t.Fatal(err)
	}

	return image
}

func layerDigest(t *testing.T, image *osimage.Image, role osimage.Role) string {
	t.Helper()

	content, ok := image.Config().Content(role)
	if !ok {
		t.Fatalf("no content %s", role)
	}

	return content.Digest
}

func background(t *testing.T) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)

	return ctx
}

func itoa(n int64) string {
	return strconv.FormatInt(n, 10)
}
