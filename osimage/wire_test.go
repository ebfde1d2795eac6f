package osimage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/registrytest"
)

const wireTag = "/os/labos:1.1.0"

// clientOf makes a client that knows a registry and does not wait long between tries.
func clientOf(t *testing.T, registry *registrytest.Faulty, options ...osimage.Option) *osimage.Client {
	t.Helper()

	client, err := osimage.NewClient(append([]osimage.Option{
		osimage.WithRootCAs(registry.Roots),
		osimage.WithRetry(osimage.Retry{Tries: 3, First: time.Millisecond, Max: time.Millisecond}),
		osimage.WithDockerConfigJSON(fmt.Appendf(nil, `{"auths":{%q:{"username":%q,"password":%q}}}`,
			registry.Address, registrytest.User, registrytest.Password)),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}

	return client
}

// fill puts an image into a registry and opens it there.
func fill(t *testing.T, registry *registrytest.Faulty, options ...osimage.Option) *osimage.Image {
	t.Helper()

	if _, err := clientOf(t, registry).Push(background(t), build(t, someContents()), "", registry.Address+wireTag, nil); err != nil {
		t.Fatal(err)
	}

	image, err := clientOf(t, registry, options...).Image(background(t), registry.Address+wireTag)
	if err != nil {
		t.Fatal(err)
	}

	registry.Requests()

	return image
}

// sentOf adds up the bytes of a blob that were sent, and counts the requests for it.
func sentOf(requests []registrytest.Request, digest string) (sent int64, count int) {
	for _, request := range requests {
		if request.Method == http.MethodGet && strings.HasSuffix(request.Path, digest) && request.Status != http.StatusTemporaryRedirect {
			sent += request.Sent
			count++
		}
	}

	return sent, count
}

// Each answer to a request for a layer, on its own.
func TestAnswersToALayer(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		fault registrytest.Fault
		times int
		// want is the error, nil when the image is to be had after all; says is in it, or in what was told before.
		want error
		says string
		// asked is the number of requests for the layer.
		asked int
	}{
		"401 always":             {registrytest.Status(401), 99, osimage.ErrUnauthorized, "credentials", 2},
		"401 once":               {registrytest.Status(401), 1, nil, "", 2},
		"403":                    {registrytest.Status(403), 99, osimage.ErrUnauthorized, "right", 1},
		"404":                    {registrytest.Status(404), 99, osimage.ErrNotFound, "pushed", 1},
		"407":                    {registrytest.Status(407), 99, osimage.ErrUnauthorized, "proxy", 1},
		"408 once":               {registrytest.Status(408), 1, nil, "408", 2},
		"429 once":               {registrytest.Status(429), 1, nil, "429", 2},
		"429 always":             {registrytest.Status(429), 99, osimage.ErrTransient, "limits", 3},
		"500 twice":              {registrytest.Status(500), 2, nil, "500", 3},
		"502 always":             {registrytest.Status(502), 99, osimage.ErrTransient, "502", 3},
		"cut three times":        {registrytest.CutAfter(400_000), 3, nil, "broke at byte", 4},
		"cut before a byte":      {registrytest.CutAfter(0), 2, nil, "EOF", 3},
		"silent":                 {registrytest.SilentAfter(1000), 1, nil, "no byte came", 2},
		"400":                    {registrytest.Status(400), 99, osimage.ErrNotAnImage, "OCI registry", 1},
		"416, and it is shorter": {registrytest.Status(416, "Content-Range", "bytes */10"), 99, osimage.ErrTruncated, "10 bytes", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := registrytest.StartFaulty(t)

			var told []string

			image := fill(t, registry, osimage.WithStallTimeout(2*time.Second),
				osimage.WithRetryNotice(func(cause error, _ time.Duration) { told = append(told, cause.Error()) }))
			digest := layerDigest(t, image, osimage.RoleUSR)

			registry.Misbehave(test.times, registrytest.Blobs(digest), test.fault)

			data, err := readFrom(t, image, osimage.RoleUSR, 0)

			switch {
			case !errors.Is(err, test.want):
				t.Errorf("got %v, want %v", err, test.want)
			case test.want == nil && !bytes.Equal(data, someContents()[osimage.RoleUSR]):
				t.Error("other bytes than were put in")
			case !strings.Contains(fmt.Sprint(err, told), test.says):
				t.Errorf("got %v after %q, want that it says %q", err, told, test.says)
			}

			sent, asked := sentOf(registry.Requests(), digest)
			if asked != test.asked {
				t.Errorf("the layer was asked for %d times, want %d", asked, test.asked)
			}

			layer, _ := image.Config().Content(osimage.RoleUSR)
			if test.want == nil && sent != layer.Size {
				t.Errorf("%d bytes were sent of a layer of %d: something was fetched twice", sent, layer.Size)
			}
		})
	}
}

// The clock is a fake one here: the pause that a registry asks for is waited, and told before.
func TestPausesThatRegistriesAskFor(t *testing.T) {
	t.Parallel()

	registry := registrytest.StartFaulty(t)

	var pauses []time.Duration

	fill(t, registry)

	for _, header := range [][]string{
		{"Retry-After", "3600"},
		{"Retry-After", "Mon, 30 Nov 2026 12:04:00 GMT", "Date", "Mon, 30 Nov 2026 12:00:00 GMT"},
		{"Retry-After", "soon"},
		{"Retry-After", "-5"},
	} {
		registry.Misbehave(1, registrytest.Manifests, registrytest.Status(429, header...))

		ctx, cancel := context.WithCancel(background(t))
		client := clientOf(t, registry, osimage.WithRetryNotice(func(_ error, pause time.Duration) {
			pauses = append(pauses, pause)

			// Nobody waits for that in a test.
			cancel()
		}))

		if _, err := client.Image(ctx, registry.Address+wireTag); !errors.Is(err, context.Canceled) {
			t.Errorf("%q: %v", header, err)
		}
	}

	for index, want := range []time.Duration{5 * time.Minute, 4 * time.Minute, 0, 0} {
		// A fifth is random.
		if got := pauses[index]; got < want || got > want*6/5+time.Millisecond {
			t.Errorf("pause %d is %s, want %s", index, got, want)
		}
	}
}

// A token that expires in the middle is renewed, and credentials that are refused are asked for once.
func TestTokensThatExpire(t *testing.T) {
	t.Parallel()

	registry := registrytest.StartFaulty(t, registrytest.WithTokens())
	image := fill(t, registry)

	registry.Expire()

	if _, err := readFrom(t, image, osimage.RoleUSR, 0); err != nil {
		t.Fatal(err)
	}

	_, err := clientOf(t, registry, osimage.WithDockerConfigJSON([]byte(`{}`))).Image(background(t), registry.Address+wireTag)
	if !errors.Is(err, osimage.ErrUnauthorized) || !strings.Contains(err.Error(), "--docker-config") {
		t.Errorf("without credentials: %v", err)
	}
}

// The storage behind a registry gets the range but no credentials. Each next range goes there directly, until the signed
// address expires.
func TestStorageBehindARegistry(t *testing.T) {
	t.Parallel()

	registry := registrytest.StartFaulty(t, registrytest.WithStorage(), registrytest.WithTokens())
	image := fill(t, registry)
	digest := layerDigest(t, image, osimage.RoleUSR)

	for round, want := range []string{"registry storage", "storage", "storage registry storage"} {
		if round == 2 {
			registry.Expire()
		}

		if _, err := readFrom(t, image, osimage.RoleUSR, 5<<20); err != nil {
			t.Fatal(err)
		}

		var (
			way        []string
			registries int
		)

		for _, request := range registry.Requests() {
			if !strings.HasSuffix(request.Path, digest) || request.Status == http.StatusUnauthorized {
				continue
			}

			if !request.Storage {
				registries++
				way = append(way, "registry")

				continue
			}

			way = append(way, "storage")

			if request.Header.Get("Range") == "" || request.Header.Get("Authorization") != "" {
				t.Errorf("the storage got %v", request.Header)
			}
		}

		// The frame index at the end of the layer is read first, and is a request of its own.
		if got := strings.Join(compact(way), " "); got != want || registries > 1 {
			t.Errorf("round %d went by %q, want %q", round, got, want)
		}
	}
}

// compact leaves one of each run.
func compact(words []string) []string {
	var result []string

	for _, word := range words {
		if len(result) == 0 || result[len(result)-1] != word {
			result = append(result, word)
		}
	}

	return result
}

func TestRanges(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		options []registrytest.FaultyOption
		hops    int
	}{
		"HTTP/1.1": {nil, 1},
		"HTTP/2":   {[]registrytest.FaultyOption{registrytest.WithHTTP2()}, 1},
		"storage":  {[]registrytest.FaultyOption{registrytest.WithStorage()}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := registrytest.StartFaulty(t, test.options...)
			// Of 5 faults all may meet one piece.
			image := fill(t, registry, osimage.WithRetry(osimage.Retry{Tries: 6, First: time.Millisecond, Max: time.Millisecond}))
			content, _ := image.Config().Content(osimage.RoleUSR)
			// 4 are asked for at the same time, and 3 connections are cut.
			before := connected(t, registry, image, content, test.hops, 4+3)
			layer := layerOf(t, image, content)

			registry.Requests()

			var (
				ranges []osimage.Range
				want   []byte
			)

			// In this order, not theirs in the layer.
			for from := content.Size - 50_000; from > 0; from -= 60_000 {
				ranges = append(ranges, osimage.Range{From: from, To: from + 40_000})
				want = append(want, layer[from:from+40_000]...)
			}

			registry.Misbehave(3, registrytest.Blobs(content.Digest), registrytest.CutAfter(7000))
			registry.Misbehave(2, registrytest.Blobs(content.Digest), registrytest.Status(503))

			got, err := readRanges(t, image, content, ranges, osimage.RangeOptions{})
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}

			sent, asked := sentOf(registry.Requests(), content.Digest)
			if sent != int64(len(want)) || asked < len(ranges) {
				t.Errorf("%d bytes were sent for ranges of %d, in %d requests", sent, len(want), asked)
			}

			if made := registry.Connections() - before; made != 0 {
				t.Errorf("%d more connections were made for %d ranges, though 4 were free always", made, len(ranges))
			}
		})
	}
}

// connected makes the image's client open connections to each of the servers on the way, as many as are asked for, and
// returns how many the registry has seen by then.
func connected(
	t *testing.T, registry *registrytest.Faulty, image *osimage.Image, content osimage.Content, hops, count int,
) int {
	t.Helper()

	for range hops {
		registry.Misbehave(count, registrytest.Blobs(content.Digest), registrytest.Meet(count))
	}

	ranges := make([]osimage.Range, count)
	for index := range ranges {
		ranges[index].To = 1
	}

	if _, err := readRanges(t, image, content, ranges, osimage.RangeOptions{Parallel: count}); err != nil {
		t.Fatal(err)
	}

	registry.Requests()

	return registry.Connections()
}

func layerOf(t *testing.T, image *osimage.Image, content osimage.Content) []byte {
	t.Helper()

	data, err := readRanges(t, image, content, []osimage.Range{{To: content.Size}}, osimage.RangeOptions{})
	if err != nil {
		t.Fatal(err)
	}

	return data
}

func readRanges(
	t *testing.T, image *osimage.Image, content osimage.Content, ranges []osimage.Range, options osimage.RangeOptions,
) ([]byte, error) {
	t.Helper()

	reader, err := image.Ranges(background(t), content, ranges, options)
	if err != nil {
		return nil, err
	}

	data, err := io.ReadAll(reader)

	return data, errors.Join(err, reader.Close())
}

// Whatever says that there are no ranges says it at once, also when it is a second try that finds out.
func TestRegistriesWithoutRanges(t *testing.T) {
	t.Parallel()

	for name, fault := range map[string]registrytest.Fault{
		"200": registrytest.WithoutRanges, "416": registrytest.Status(416), "501": registrytest.Status(501),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			registry := registrytest.StartFaulty(t)
			image := fill(t, registry)
			content, _ := image.Config().Content(osimage.RoleUSR)

			registry.Misbehave(1, registrytest.Blobs(content.Digest), registrytest.CutAfter(1000))
			registry.Misbehave(99, registrytest.Blobs(content.Digest), fault)

			_, err := readRanges(t, image, content, []osimage.Range{{From: 10, To: 100_000}}, osimage.RangeOptions{})
			if !osimage.IsNoRanges(err) {
				t.Errorf("got %v, want that there are no ranges", err)
			}
		})
	}
}

func TestRangesOutsideTheLayer(t *testing.T) {
	t.Parallel()

	image := fill(t, registrytest.StartFaulty(t))
	content, _ := image.Config().Content(osimage.RoleUSR)

	for _, part := range []osimage.Range{{From: -1, To: 5}, {From: 5, To: 4}, {From: 0, To: content.Size + 1}} {
		if _, err := readRanges(t, image, content, []osimage.Range{part}, osimage.RangeOptions{}); !errors.Is(err, osimage.ErrInvalid) {
			t.Errorf("%+v: %v", part, err)
		}
	}

	if data, err := readRanges(t, image, content, []osimage.Range{{From: 5, To: 5}}, osimage.RangeOptions{}); len(data) > 0 || err != nil {
		t.Errorf("nothing: %d bytes, %v", len(data), err)
	}
}

// No more is fetched than fits into the window while nobody reads, and closing ends it all.
func TestRangesStayInTheirWindow(t *testing.T) {
	t.Parallel()

	const window = 300_000

	registry := registrytest.StartFaulty(t)

	var (
		received atomic.Int64
		full     = make(chan struct{})
	)

	image := fill(t, registry)
	image, err := clientOf(t, registry, osimage.WithByteCounter(func(n int64) {
		if total := received.Add(n); total >= window && total-n < window {
			close(full)
		}
	})).Image(background(t), image.Reference())
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)

	received.Store(0)

	reader, err := image.Ranges(background(t), content, []osimage.Range{{To: content.Size}},
		osimage.RangeOptions{Window: window, Parallel: 3})
	if err != nil {
		t.Fatal(err)
	}

	<-full

	if err := reader.Close(); err != nil {
		t.Error(err)
	}

	if got := received.Load(); got > window {
		t.Errorf("received %d bytes, the window has %d", got, window)
	}

	if _, err := reader.Read(make([]byte, 1)); err == nil {
		t.Error("a closed reader gives bytes")
	}
}

// A limit is kept by real transfers too; how exactly is the limiter's test.
func TestRangesAreLimited(t *testing.T) {
	t.Parallel()

	registry := registrytest.StartFaulty(t)
	reference := fill(t, registry).Reference()

	image, err := clientOf(t, registry, osimage.WithRateLimit(2<<20)).Image(background(t), reference)
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)
	start := time.Now()

	if _, err := readRanges(t, image, content, []osimage.Range{{To: 2 << 20}}, osimage.RangeOptions{}); err != nil {
		t.Fatal(err)
	}

	// The first twentieth is free.
	if took := time.Since(start); took < 900*time.Millisecond {
		t.Errorf("2 MiB at 2 MiB/s took %s", took)
	}
}

// Connections are kept while nobody reads, all of them.
func TestRangesKeepTheirConnections(t *testing.T) {
	t.Parallel()

	const (
		parallel, rounds = 8, 4
		size             = 50_000
		window           = parallel * size
	)

	registry := registrytest.StartFaulty(t)
	reference := fill(t, registry).Reference()

	var received atomic.Int64

	full := make(chan struct{}, rounds)

	image, err := clientOf(t, registry, osimage.WithByteCounter(func(n int64) {
		if total := received.Add(n); total/window > (total-n)/window {
			full <- struct{}{}
		}
	})).Image(background(t), reference)
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)
	before := connected(t, registry, image, content, 1, parallel)

	received.Store(0)

	reader, err := image.Ranges(background(t), content, []osimage.Range{{To: rounds * window}},
		osimage.RangeOptions{Window: window, Parallel: parallel})
	if err != nil {
		t.Fatal(err)
	}

	for range rounds {
		<-full

		if _, err := io.CopyN(io.Discard, reader, window); err != nil {
			t.Fatal(err)
		}
	}

	if err := reader.Close(); err != nil {
		t.Error(err)
	}

	if made := registry.Connections() - before; made != 0 {
		t.Errorf("%d more connections were made for %d requests at the same time, though all were free", made, parallel)
	}
}

// A real registry serves the same bytes in ranges as in one piece.
func TestRangesOfARealRegistry(t *testing.T) {
	t.Parallel()

	server := registrytest.Start(t)
	client := newClient(t, osimage.WithCAFile(server.CAFile), osimage.WithDockerConfig(server.DockerConfig))

	if _, err := client.Push(background(t), build(t, someContents()), "", server.Address+wireTag, nil); err != nil {
		t.Fatal(err)
	}

	image, err := client.Image(background(t), server.Address+wireTag)
	if err != nil {
		t.Fatal(err)
	}

	content, _ := image.Config().Content(osimage.RoleUSR)
	layer := layerOf(t, image, content)
	ranges := []osimage.Range{{From: 1, To: 2}, {From: content.Size - 1, To: content.Size}, {From: 5, To: content.Size - 7}}

	got, err := readRanges(t, image, content, ranges, osimage.RangeOptions{Window: 1 << 20})
	if want := append([]byte{layer[1], layer[len(layer)-1]}, layer[5:len(layer)-7]...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, want %d: %v", len(got), len(want), err)
	}
}
