package endpoint

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// Options of a Server.
type Options struct {
	// Handler answers the requests.
	Handler http.Handler
	// TLS makes it speak HTTPS, from TLS 1.2 on; HTTP otherwise. HTTP/1.1 in both cases, as BMCs do.
	TLS bool
	// Clock measures DownFor. Default: the machine's.
	Clock clock.WithDelayedExecution
}

// Server is a listening endpoint. Close it.
type Server struct {
	options   Options
	authority *authority
	server    *http.Server
	address   *net.TCPAddr
	serving   sync.WaitGroup

	mu       sync.Mutex
	config   *tls.Config // nil without TLS
	plain    bool
	resets   int
	accepted int
	closed   bool
	listener net.Listener // nil while down
	reserved int          // the socket that keeps the port while down; 0: none

	// openMu guards open; it is taken with or without mu, and never held while a connection is closed.
	openMu sync.Mutex
	open   map[net.Conn]struct{}
}

// Start listens on a free port.
func Start(options Options) (*Server, error) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	s := &Server{options: options, open: map[net.Conn]struct{}{}}
	s.server = &http.Server{
		Handler: options.Handler, ReadHeaderTimeout: time.Minute,
		// What clients do to their connections is no news in a test.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	if options.TLS {
		var err error
		if s.authority, err = newAuthority(); err != nil {
			return nil, err
		}
		if err := s.Show(Valid); err != nil {
			return nil, err
		}
	}
	if err := s.Up(); err != nil {
		return nil, err
	}

	return s, nil
}

// Host is the host and port.
func (s *Server) Host() string { return s.address.String() }

// URL is the URL without a path.
func (s *Server) URL() string {
	if s.options.TLS {
		return "https://" + s.Host()
	}

	return "http://" + s.Host()
}

// CA is the certificate that verifies the server, in PEM; nil without TLS.
func (s *Server) CA() []byte {
	if s.authority == nil {
		return nil
	}

	return s.authority.pem()
}

// Show makes new connections see another certificate.
func (s *Server) Show(which Certificate) error {
	if s.authority == nil {
		return nil
	}
	certificate, err := s.authority.issue(which)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = withCertificate(certificate)

	return nil
}

// PlainText answers new connections in HTTP although the endpoint is an HTTPS one.
func (s *Server) PlainText(plain bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.plain = plain
}

// ResetNext resets the next n connections as soon as they are made, before the TLS handshake; all of them when n is
// negative, none when it is 0.
func (s *Server) ResetNext(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets = n
}

// Connections is how many connections were accepted.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.accepted
}

// Down refuses new connections and breaks the open ones, until Up. It may be called by the Handler.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == nil || s.closed {
		return
	}
	s.reserved = reserve(s.address.Port)
	_ = s.listener.Close()
	s.listener = nil
	s.abortOpen()
}

// abortOpen resets all connections.
func (s *Server) abortOpen() {
	s.openMu.Lock()
	open := slices.Collect(maps.Keys(s.open))
	s.openMu.Unlock()
	for _, conn := range open {
		abort(conn)
	}
}

// DownFor is Down, and Up after a time of the Clock.
func (s *Server) DownFor(d time.Duration) {
	s.Down()
	s.options.Clock.AfterFunc(d, func() { _ = s.Up() })
}

// Up listens again. It is safe to call twice.
func (s *Server) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil || s.closed {
		return nil
	}
	address := "127.0.0.1:0"
	if s.address != nil {
		address = s.address.String()
	}
	config := net.ListenConfig{Control: reusePort}
	raw, err := config.Listen(context.Background(), "tcp4", address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", address, err)
	}
	if s.address == nil {
		s.address, _ = raw.Addr().(*net.TCPAddr)
	}
	s.release()
	s.listener = raw
	s.serving.Go(func() { _ = s.server.Serve(&listener{Listener: raw, server: s}) })

	return nil
}

// Close ends the endpoint and all connections, and waits for its goroutines. It is safe to call twice.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.release()
	s.abortOpen()
	s.mu.Unlock()
	_ = s.server.Close()
	s.serving.Wait()
}

// release gives the reserved port back; mu must be held.
func (s *Server) release() {
	if s.reserved > 0 {
		_ = unix.Close(s.reserved)
		s.reserved = 0
	}
}

// reserve binds a socket to the port without listening: connections are refused, and the port is not given to others.
func reserve(port int) int {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		_ = unix.Close(fd)

		return 0
	}

	return fd
}

func reusePort(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if err != nil {
		return fmt.Errorf("reaching the socket: %w", err)
	}

	return failed
}
