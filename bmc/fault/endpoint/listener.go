package endpoint

import (
	"crypto/tls"
	"net"
	"sync"
)

// listener hands connections to the HTTP server, after what is broken about them.
type listener struct {
	net.Listener

	server *Server
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if serve := l.server.admit(conn); serve != nil {
			return serve, nil
		}
	}
}

// admit counts a connection and wraps it; nil when it was reset instead.
func (s *Server) admit(raw net.Conn) net.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
	if s.resets != 0 || s.closed {
		if s.resets > 0 {
			s.resets--
		}
		abort(raw)

		return nil
	}
	tracked := &connection{Conn: raw, server: s}
	s.openMu.Lock()
	s.open[tracked] = struct{}{}
	s.openMu.Unlock()
	if !s.options.TLS || s.plain {
		return tracked
	}

	return tls.Server(tracked, s.config)
}

// withCertificate is a configuration for all connections that see one certificate, so that a client can resume its
// session with it, and only with it.
func withCertificate(certificate *tls.Certificate) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*certificate}}
}

// connection leaves the server's list when it is closed.
type connection struct {
	net.Conn

	server *Server
	once   sync.Once
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.once.Do(func() { c.server.forget(c) })

	return c.Conn.Close()
}

func (s *Server) forget(c *connection) {
	s.openMu.Lock()
	defer s.openMu.Unlock()
	delete(s.open, c)
}

// Abort resets the TCP connection below conn, so that its peer sees a reset and not an end.
func Abort(conn net.Conn) { abort(conn) }

func abort(conn net.Conn) {
	inner := conn
	for {
		switch wrapped := inner.(type) {
		case *tls.Conn:
			inner = wrapped.NetConn()

			continue
		case *connection:
			inner = wrapped.Conn

			continue
		}

		break
	}
	if tcp, ok := inner.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
	}
	if conn != inner {
		_ = conn.Close()
	}
}
