package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/stayput-dev/stayput/controllers/outofband"
)

// An API server that accepts the connection and says nothing: the signal ends the start.
func TestTheStartBesideASilentServerCanBeEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		cancel()
		<-request.Context().Done()
	}))
	t.Cleanup(server.Close)
	err := run(ctx, &rest.Config{Host: server.URL}, options{}, outofband.Options{}, logr.Discard())
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), server.URL) {
		t.Errorf("got %v", err)
	}
}

func TestReach(t *testing.T) {
	t.Parallel()
	for status, refused := range map[int]bool{
		http.StatusOK: false, http.StatusForbidden: false, http.StatusUnauthorized: true, http.StatusInternalServerError: true,
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		t.Cleanup(server.Close)
		if err := reach(t.Context(), &rest.Config{Host: server.URL}); (err != nil) != refused {
			t.Errorf("status %d: %v", status, err)
		}
	}
	if err := reach(t.Context(), &rest.Config{Host: "http://127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestFlagsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	pod := filepath.Join(t.TempDir(), "namespace")
	if err := os.WriteFile(pod, []byte("stayput-system"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := options{metricsAddress: ":8080", probeAddress: "127.0.0.1:8081", leaderElect: true, shutdownTimeout: time.Second, powerActions: 1}
	for name, tt := range map[string]struct {
		change func(o *options)
		noPod  bool
		flag   string // that the error names, "" for none
	}{
		"the defaults":       {change: func(*options) {}},
		"no servers":         {change: func(o *options) { o.metricsAddress, o.probeAddress = "0", "0" }},
		"no port":            {change: func(o *options) { o.metricsAddress = "localhost" }, flag: "--metrics-bind-address"},
		"a port of no one":   {change: func(o *options) { o.probeAddress = ":99999" }, flag: "--health-probe-bind-address"},
		"a negative timeout": {change: func(o *options) { o.shutdownTimeout = -1 }, flag: "--shutdown-timeout"},
		"a folder of hosts":  {change: func(o *options) { o.registries.HostsDir = os.TempDir() }},
		"no such folder":     {change: func(o *options) { o.registries.HostsDir = "/none/of/this" }, flag: "--hosts-dir"},
		"a proxy":            {change: func(o *options) { o.registries.Proxy = "http://robot:hunter2@proxy:3128" }},
		"no proxy's address": {change: func(o *options) { o.registries.Proxy = "robot:hunter2@proxy" }, flag: "--proxy"},
		"no power actions":   {change: func(o *options) { o.powerActions = 0 }, flag: "--max-power-actions-per-minute"},
		"no pod":             {change: func(*options) {}, noPod: true, flag: "--leader-election-namespace"},
		"no pod, named":      {change: func(o *options) { o.leaderElectionNamespace = "default" }, noPod: true},
		"no pod, alone":      {change: func(o *options) { o.leaderElect = false }, noPod: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, namespace := good, pod
			tt.change(&o)
			if tt.noPod {
				namespace += ".none"
			}
			err := o.check(namespace)
			if (err != nil) != (tt.flag != "") || err != nil && !strings.Contains(err.Error(), tt.flag) {
				t.Errorf("got %v, want an error that names %q", err, tt.flag)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v has the proxy's password", err)
			}
		})
	}
}
