package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"
)

const sharedTimeout = 5 * time.Minute

// Shared is one server for the tests of a package, started by the first test that asks for it. It is not started before
// the tests: the go command runs a cached test again when a file has changed that was opened by a test.
type Shared struct {
	// Prepare is called once, on the fresh server; nil is nothing.
	Prepare func(ctx context.Context, server *Server) error

	mutex  sync.Mutex
	asked  bool
	server *Server
	err    error
}

// Server is the server. It fails the test when there is none.
func (s *Shared) Server(t *testing.T) *Server {
	t.Helper()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if !s.asked {
		s.asked = true
		s.server, s.err = s.start()
	}
	if s.err != nil {
		t.Fatal(s.err)
	}

	return s.server
}

func (s *Shared) start() (*Server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), sharedTimeout)
	defer cancel()
	server, err := Start(ctx)
	if err != nil || s.Prepare == nil {
		return server, err
	}
	if err := s.Prepare(ctx, server); err != nil {
		return nil, errors.Join(err, server.Stop())
	}

	return server, nil
}

// Main is for TestMain: it runs the tests, stops the server where one was started, and gives the exit code.
func (s *Shared) Main(m *testing.M) int {
	code := m.Run()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.server == nil {
		return code
	}
	if err := s.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return code
}
