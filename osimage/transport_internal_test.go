package osimage

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A server that sees its client go may end its answer well, in time for the client to see that.
func TestAnEndedRequestHasNoWholeAnswer(t *testing.T) {
	t.Parallel()

	ctx, stop := context.WithCancelCause(t.Context())
	body := &receivedBody{
		ReadCloser: io.NopCloser(strings.NewReader("{")), ctx: ctx, stop: stop, stall: newStall(time.Hour, stop), count: func(int64) {},
	}

	if n, err := body.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("read %d bytes, %v", n, err)
	}

	stop(errStalled)

	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, errStalled) {
		t.Errorf("got %v, want that it was ended", err)
	}
}

// Addresses of storage behind a registry are signed: whoever has one has the layer.
func TestErrorsHoldNoSecretsOfAddresses(t *testing.T) {
	t.Parallel()

	err := classify(t.Context(), "os/labos:1", &url.Error{
		Op: "Get", URL: "https://user:hunter2@storage.example/layer?signature=hunter2#hunter2", Err: io.ErrUnexpectedEOF,
	})

	if text := err.Error(); strings.Contains(text, "hunter2") || !strings.Contains(text, "https://storage.example/layer") {
		t.Errorf("got %q", text)
	}
}
