package osimage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/osimage"
)

func discardLogger() *log.Logger {
	return log.New(io.Discard, "", 0)
}

// readFrom reads a content from an offset to its end.
func readFrom(t *testing.T, image *osimage.Image, role osimage.Role, offset int64) ([]byte, error) {
	t.Helper()

	reader, err := image.Open(background(t), role, offset)
	if err != nil {
		return nil, err
	}

	data, err := io.ReadAll(reader)

	return data, errors.Join(err, reader.Close())
}

func TestOpenGivesTheRawBytes(t *testing.T) {
	t.Parallel()

	parts := someContents()
	image := newFaults(t).push(t, parts)

	for role, want := range parts {
		got, err := readFrom(t, image, role, 0)
		if err != nil {
			t.Fatalf("%s: %v", role, err)
		}

		if !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes than were put in", role)
		}
	}
}

func TestOpenFromAnyOffset(t *testing.T) {
	t.Parallel()

	parts := someContents()
	want := parts[osimage.RoleUSR]
	image := newFaults(t).push(t, parts)

	rapid.Check(t, func(rt *rapid.T) {
		offset := rapid.OneOf(rapid.Int64Range(0, usrSize), rapid.SampledFrom([]int64{
			0, 4 << 20, 8 << 20, 4<<20 - 1,
			4<<20 + 1, usrSize - 1, usrSize,
		})).Draw(rt, "offset")

		got, err := readFrom(t, image, osimage.RoleUSR, offset)
		if err != nil {
			rt.Fatal(err)
		}

		if !bytes.Equal(got, want[offset:]) {
			rt.Fatal("other bytes than were put in")
		}
	})
}

func TestOpenOutsideTheContent(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())

	for _, offset := range []int64{-1, usrSize + 1} {
		if _, err := image.Open(background(t), osimage.RoleUSR, offset); err == nil {
			t.Errorf("offset %d was accepted", offset)
		}
	}

	if _, err := image.Open(background(t), osimage.RoleState, 0); !errors.Is(err, osimage.ErrNotFound) {
		t.Errorf("a missing role: %v", err)
	}
}

func TestOpenFromAnOffsetFetchesOnlyTheRest(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)

	var received atomic.Int64

	image := registry.push(t, someContents(), osimage.WithByteCounter(func(n int64) { received.Add(n) }))
	layer, _ := image.Config().Content(osimage.RoleUSR)
	before := received.Load()

	if _, err := readFrom(t, image, osimage.RoleUSR, 8<<20); err != nil {
		t.Fatal(err)
	}

	got := received.Load() - before
	if got == 0 || got > layer.Size/10 {
		t.Errorf("received %d bytes for the last frame of a layer of %d", got, layer.Size)
	}
}

func TestBrokenTransferResumes(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*faults){
		"ranges":           func(*faults) {},
		"no ranges":        func(f *faults) { f.noRanges = true; f.breaks = 2 },
		"416 for a range":  func(f *faults) { f.statusForRange = http.StatusRequestedRangeNotSatisfiable; f.breaks = 2 },
		"501 for a range":  func(f *faults) { f.statusForRange = http.StatusNotImplemented; f.breaks = 2 },
		"503 now and then": func(f *faults) { f.status, f.statuses, f.breaks = http.StatusServiceUnavailable, 2, 0 },
	} {
		for _, offset := range []int64{0, 5 << 20} {
			t.Run(name+" from "+itoa(offset), func(t *testing.T) {
				t.Parallel()

				parts := someContents()
				registry := newFaults(t)
				image := registry.push(t, parts)

				registry.set(func(f *faults) {
					f.breakAfter, f.breaks, f.served, f.requests = 600_000, 1000, 0, 0
					change(f)
				})

				got, err := readFrom(t, image, osimage.RoleUSR, offset)
				if err != nil {
					t.Fatal(err)
				}

				if !bytes.Equal(got, parts[osimage.RoleUSR][offset:]) {
					t.Error("other bytes than were put in")
				}

				if registry.requests < 3 {
					t.Errorf("%d requests: nothing broke", registry.requests)
				}
			})
		}
	}
}

func TestResumeFetchesNothingTwice(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	layer, _ := image.Config().Content(osimage.RoleUSR)

	registry.set(func(f *faults) { f.breakAfter, f.breaks, f.served = 600_000, 1000, 0 })

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); err != nil {
		t.Fatal(err)
	}

	if int64(registry.served) != layer.Size {
		t.Errorf("the registry sent %d bytes for a layer of %d", registry.served, layer.Size)
	}
}

func TestOtherRangeThanAskedFor(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())

	registry.set(func(f *faults) { f.breakAfter, f.breaks, f.otherRange = 600_000, 1, "bytes=1000-" })

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); !osimage.IsTransient(err) || !strings.Contains(err.Error(), "range") {
		t.Errorf("got %v, want a transient error that names the range", err)
	}
}

func TestTriesAreBounded(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())

	registry.set(func(f *faults) { f.breakAfter, f.breaks = 1000, 1000 })

	_, err := readFrom(t, image, osimage.RoleUSR, 0)
	if !osimage.IsTransient(err) {
		t.Errorf("got %v, want a transient error", err)
	}

	if registry.breaks < 900 {
		t.Errorf("tried %d times", 1000-registry.breaks)
	}
}

// stallTimeout is long enough for a busy machine to answer, and stallDeadline for all tries: without the timeouts the
// calls below would wait for ever.
const (
	stallTimeout  = time.Second
	stallDeadline = time.Minute
)

// fallSilent makes the registry send some first bytes of the answers that are chosen, and then nothing.
func (f *faults) fallSilent(t *testing.T, first []byte, chosen func(r *http.Request) bool) {
	t.Helper()

	release := make(chan struct{})
	t.Cleanup(func() { close(release) })

	inner := f.server.Config.Handler
	f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !chosen(r) {
			inner.ServeHTTP(w, r)

			return
		}

		if len(first) > 0 {
			_, _ = w.Write(first)
			w.(http.Flusher).Flush() //nolint:forcetypeassert // net/http.
		}

		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
}

// Whatever the registry is asked, a wait ends when nothing moves.
func TestSilentRegistry(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		first   []byte
		chosen  func(r *http.Request, layer string) bool
		pushing bool
	}{
		"in a layer": {
			first:  []byte{0x28, 0xb5},
			chosen: func(r *http.Request, layer string) bool { return strings.HasSuffix(r.URL.Path, layer) },
		},
		"in a manifest": {
			first:  []byte("{"),
			chosen: func(r *http.Request, _ string) bool { return strings.Contains(r.URL.Path, "/manifests/") },
		},
		"before an answer": {
			chosen: func(r *http.Request, _ string) bool { return strings.Contains(r.URL.Path, "/manifests/") },
		},
		"in an upload": {
			pushing: true,
			chosen:  func(r *http.Request, _ string) bool { return r.ContentLength > 1<<20 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			ctx, cancel := context.WithTimeout(t.Context(), stallDeadline)
			t.Cleanup(cancel)

			registry := newFaults(t)
			image := registry.push(t, someContents())
			digest := layerDigest(t, image, osimage.RoleUSR)
			client := registry.client(t, osimage.WithStallTimeout(stallTimeout),
				osimage.WithRetry(osimage.Retry{Tries: 1, First: time.Millisecond, Max: time.Millisecond}))

			registry.fallSilent(t, test.first, func(r *http.Request) bool { return test.chosen(r, digest) })

			var err error

			if test.pushing {
				// More than the buffers on the way hold, and not in the registry yet.
				dir := build(t, contents{
					osimage.RoleUSR: noise(7, 16<<20), osimage.RoleUSRVerity: {1}, osimage.RoleUKI: {2},
				})
				_, err = client.Push(ctx, dir, "", registry.reference("2"), nil)
			} else if image, err = client.Image(ctx, registry.reference("1.1.0")); err == nil {
				var reader io.ReadCloser

				reader, err = image.Open(ctx, osimage.RoleUSR, 0)
				if err == nil {
					_, err = io.Copy(io.Discard, reader)
					err = errors.Join(err, reader.Close())
				}
			}

			// A busy machine may be late with the first bytes.
			if !osimage.IsTransient(err) || !strings.Contains(err.Error(), "no byte came") && !strings.Contains(err.Error(), "timeout") {
				t.Errorf("got %v, want a transient error that says what did not come", err)
			}
		})
	}
}

// An answer that ends well but too early is not the end of the layer.
func TestAnswersThatAreTooShort(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())
	digest := layerDigest(t, image, osimage.RoleUSR)
	inner := registry.server.Config.Handler

	registry.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, digest) {
			inner.ServeHTTP(w, r)

			return
		}

		// Without a length, so that the client sees no broken connection.
		w.(http.Flusher).Flush() //nolint:forcetypeassert // net/http.
	})

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); !osimage.IsTransient(err) {
		t.Errorf("got %v, want a transient error", err)
	}
}

// Bytes that are skipped through again, because the registry has no ranges, are no progress.
func TestTriesAreBoundedWithoutRanges(t *testing.T) {
	t.Parallel()

	registry := newFaults(t)
	image := registry.push(t, someContents())

	registry.set(func(f *faults) { f.noRanges, f.breakAfter, f.breaks = true, 600_000, 1000 })

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); !osimage.IsTransient(err) || registry.breaks < 900 {
		t.Errorf("tried %d times: %v", 1000-registry.breaks, err)
	}
}

func TestBadLayersAreRefused(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		mutate func(data []byte) []byte
		want   error
	}{
		"one bit changed": {func(data []byte) []byte {
			data = bytes.Clone(data)
			data[len(data)/2] ^= 1

			return data
		}, osimage.ErrWrongDigest},
		"changed in the seek table": {func(data []byte) []byte {
			data = bytes.Clone(data)
			data[len(data)-20] ^= 1

			return data
		}, osimage.ErrWrongDigest},
		"garbage": {func(data []byte) []byte {
			return randomBytes(9, len(data))
		}, osimage.ErrWrongDigest},
		"cut off":  {func(data []byte) []byte { return data[:len(data)/2] }, osimage.ErrTruncated},
		"too long": {func(data []byte) []byte { return append(bytes.Clone(data), 0) }, osimage.ErrTooLarge},
		"zeros instead of the second half": {func(data []byte) []byte {
			return append(bytes.Clone(data[:len(data)/2]), make([]byte, len(data)-len(data)/2)...)
		}, osimage.ErrWrongDigest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := newFaults(t)
			image := registry.push(t, someContents())
			digest := layerDigest(t, image, osimage.RoleUSR)

			registry.set(func(f *faults) {
				f.mutate = func(of string, data []byte) []byte {
					if of == digest {
						return test.mutate(data)
					}

					return data
				}
			})

			if _, err := readFrom(t, image, osimage.RoleUSR, 0); !errors.Is(err, test.want) || osimage.IsTransient(err) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}
