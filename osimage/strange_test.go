package osimage_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

// answered is a fault that changes the answer, which it gets whole.
func answered(change func(w http.ResponseWriter, r *http.Request, answer *httptest.ResponseRecorder)) registrytest.Fault {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)

		maps.Copy(w.Header(), answer.Header())

		w.Header().Del("Content-Length")
		change(w, r, answer)
	}
}

// give answers with a body.
func give(w http.ResponseWriter, status int, body []byte) {
	w.WriteHeader(status)

	// The client may have gone, which is its matter.
	_, _ = w.Write(body)
}

// withRange answers with another Content-Range, "" for none.
func withRange(text string) registrytest.Fault {
	return answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
		w.Header().Del("Content-Range")

		if text != "" {
			w.Header().Set("Content-Range", text)
		}

		give(w, answer.Code, answer.Body.Bytes())
	})
}

// inParts answers with several ranges at once, though one was asked for.
func inParts(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
	const boundary = "next"

	w.Header().Set("Content-Type", "multipart/byteranges; boundary="+boundary)

	body := fmt.Sprintf("--%s\r\nContent-Range: %s\r\n\r\n%s\r\n--%s--\r\n", boundary, w.Header().Get("Content-Range"),
		answer.Body, boundary)

	w.Header().Del("Content-Range")
	give(w, answer.Code, []byte(body))
}

// compressed answers with Content-Encoding, which nobody asked for.
func compressed(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
	var body bytes.Buffer

	packed := gzip.NewWriter(&body)
	_, _ = packed.Write(answer.Body.Bytes())
	_ = packed.Close()

	w.Header().Set("Content-Encoding", "gzip")
	give(w, answer.Code, body.Bytes())
}

// knownSize replaces the size in a Content-Range.
func knownSize(size string) registrytest.Fault {
	return answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
		part, _, _ := strings.Cut(w.Header().Get("Content-Range"), "/")
		w.Header().Set("Content-Range", part+"/"+size)
		give(w, answer.Code, answer.Body.Bytes())
	})
}

// Whatever is answered to a request for a part, an update ends: with the right bytes, in one stream if need be, or with an
// error that says what was wrong.
func TestUpdatesOverStrangeAnswers(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		fault registrytest.Fault
		times int
		// streamed tells that all of the layer is fetched in the end; want is the error, which says something.
		streamed bool
		want     error
		says     string
	}{
		"a range without saying which":   {withRange(""), 9999, true, nil, ""},
		"that once":                      {withRange(""), 1, false, nil, ""},
		"another range":                  {withRange("bytes 1-2/3"), 9999, true, nil, ""},
		"a range that is none":           {withRange("bytes 9-1/x"), 9999, true, nil, ""},
		"several ranges":                 {answered(inParts), 9999, true, nil, ""},
		"a range of who knows how much":  {knownSize("*"), 9999, false, nil, ""},
		"a range of another blob":        {knownSize("99999999"), 9999, false, osimage.ErrTooLarge, "99999999 bytes"},
		"a compressed answer to a range": {answered(compressed), 9999, true, nil, ""},
		"a compressed answer once":       {answered(compressed), 1, true, nil, ""},
		"more than was asked for": {answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
			give(w, answer.Code, append(answer.Body.Bytes(), make([]byte, 100_000)...))
		}), 9999, false, nil, ""},
		"less than was asked for": {answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
			give(w, answer.Code, answer.Body.Bytes()[:answer.Body.Len()/2])
		}), 5, false, nil, ""},
		"nothing": {answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
			give(w, answer.Code, nil)
		}), 9999, false, osimage.ErrTransient, "EOF"},
		"all, after some parts": {func() registrytest.Fault {
			parts := make(chan struct{}, 3)

			return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				select {
				case parts <- struct{}{}:
				default:
					r.Header.Del("Range")
				}

				next.ServeHTTP(w, r)
			}
		}(), 9999, true, nil, ""},
		"a redirect without end": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, r.URL.String(), http.StatusTemporaryRedirect)
		}, 9999, false, osimage.ErrTransient, "redirects"},
		"a redirect without TLS": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			http.Redirect(w, r, "http://storage.example"+r.URL.Path, http.StatusTemporaryRedirect)
		}, 9999, false, osimage.ErrPlainHTTP, "TLS"},
		"a redirect to a file": {func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusTemporaryRedirect)
		}, 9999, false, osimage.ErrPlainHTTP, "TLS"},
		"no content":      {registrytest.Status(http.StatusNoContent), 9999, false, osimage.ErrNotAnImage, "204"},
		"an old answer":   {registrytest.Status(http.StatusNotModified), 9999, false, osimage.ErrNotAnImage, "304"},
		"a cut, each one": {registrytest.CutAfter(0), 9999, false, osimage.ErrTransient, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			old, next := update()
			registry := registrytest.StartFaulty(t)
			parts := someContents()
			parts[osimage.RoleUSR] = next

			if _, err := clientOf(t, registry).Push(background(t), build(t, parts), "", registry.Address+wireTag, nil); err != nil {
				t.Fatal(err)
			}

			image, err := clientOf(t, registry).Image(background(t), registry.Address+wireTag)
			if err != nil {
				t.Fatal(err)
			}

			registry.Misbehave(test.times, func(r *http.Request) bool {
				return registrytest.Blobs("")(r) && r.Header.Get("Range") != ""
			}, test.fault)

			d := &delta{image: image, next: next, target: openTarget(t, 0)}

			err = d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{{Reader: bytes.NewReader(old), Size: int64(len(old))}}})
			if test.want != nil {
				if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want %v that says %q", err, test.want, test.says)
				}

				return
			}

			d.check(t, err)

			content, _ := image.Config().Content(osimage.RoleUSR)
			if last := d.planned[len(d.planned)-1]; (last.Fetch == content.Size) != test.streamed {
				t.Errorf("planned %+v for a layer of %d bytes", d.planned, content.Size)
			}
		})
	}
}

// A blob's answer that goes on for ever is read up to the blob's end.
func TestAnswersWithoutEnd(t *testing.T) {
	t.Parallel()

	registry := registrytest.StartFaulty(t)
	image := fill(t, registry)
	content, _ := image.Config().Content(osimage.RoleUSR)

	registry.Misbehave(1, registrytest.Blobs(content.Digest), func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		answered(func(w http.ResponseWriter, _ *http.Request, answer *httptest.ResponseRecorder) {
			give(w, answer.Code, answer.Body.Bytes())

			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, strings.Repeat("more", 1000))
			}
		})(w, r, next)
	})

	data, err := readFrom(t, image, osimage.RoleUSR, 0)
	if err != nil || !bytes.Equal(data, someContents()[osimage.RoleUSR]) {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}
