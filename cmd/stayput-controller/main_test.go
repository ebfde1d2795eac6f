package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
