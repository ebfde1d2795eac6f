package endpoint_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/bmc/fault/endpoint"
)

func start(t *testing.T, options endpoint.Options) *endpoint.Server {
	t.Helper()
	if options.Handler == nil {
		options.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	}
	server, err := endpoint.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)

	return server
}

func get(t *testing.T, server *endpoint.Server) (string, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(server.CA())
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	response, err := client.Get(server.URL())
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)

	return string(body), err
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	server := start(t, endpoint.Options{TLS: true})
	for _, c := range []struct {
		show endpoint.Certificate
		want string
	}{
		{endpoint.Valid, ""},
		{endpoint.OtherIssuer, "unknown authority"},
		{endpoint.OtherHost, "IP SANs"},
		{endpoint.Expired, "expired"},
		{endpoint.Valid, ""},
	} {
		if err := server.Show(c.show); err != nil {
			t.Fatal(err)
		}
		body, err := get(t, server)
		if c.want == "" {
			if err != nil || body != "hello" {
				t.Errorf("certificate %d: got %q, %v", c.show, body, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("certificate %d: got %v, want an error that says %q", c.show, err, c.want)
		}
	}
}

func TestSocketFaults(t *testing.T) {
	t.Parallel()
	server := start(t, endpoint.Options{TLS: true})
	server.PlainText(true)
	if _, err := get(t, server); err == nil || !strings.Contains(err.Error(), "HTTP response to HTTPS client") {
		t.Errorf("plain text: got %v", err)
	}
	server.PlainText(false)
	server.ResetNext(1)
	if _, err := get(t, server); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("reset: got %v", err)
	}
	if body, err := get(t, server); err != nil || body != "hello" {
		t.Errorf("after the reset: got %q, %v", body, err)
	}
	if server.Connections() != 3 {
		t.Errorf("%d connections, want 3", server.Connections())
	}
}

func TestDown(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	held, release := make(chan struct{}), make(chan struct{})
	server := start(t, endpoint.Options{Clock: clock, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			close(held)
			<-r.Context().Done()
			close(release)
		}
		_, _ = io.WriteString(w, "hello")
	})})
	broken := make(chan error, 1)
	go func() {
		response, err := http.Get(server.URL() + "/hold")
		if err == nil {
			response.Body.Close()
		}
		broken <- err
	}()
	<-held
	host := server.Host()
	server.DownFor(time.Minute)
	<-release
	if err := <-broken; err == nil {
		t.Error("a connection survives while the endpoint is down")
	}
	for range 3 {
		if _, err := get(t, server); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("while down: got %v", err)
		}
	}
	// Nobody else gets the port.
	others := start(t, endpoint.Options{})
	if others.Host() == host {
		t.Error("the port was given away")
	}
	clock.Step(59 * time.Second)
	if _, err := get(t, server); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("before its time: got %v", err)
	}
	clock.Step(time.Second)
	if body, err := get(t, server); err != nil || body != "hello" || server.Host() != host {
		t.Errorf("up again: got %q, %v at %s", body, err, server.Host())
	}
	server.Close()
	server.Close()
	if err := server.Up(); err != nil {
		t.Error(err)
	}
	if _, err := get(t, server); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after Close: got %v", err)
	}
}
