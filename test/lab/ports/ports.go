// Package ports finds free TCP ports on the loopback interface for the lab's servers.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The range lies below Linux's ephemeral ports (32768 and up, ip_local_port_range), so that no outgoing connection
// takes a port between its choice and its use.
const (
	first = 20000
	last  = 32000

	attempts = 200
)

// ErrNone means that no free port was found.
var ErrNone = errors.New("no free TCP port on 127.0.0.1")

// Allocator hands out ports, none twice. The zero value is ready to use.
type Allocator struct {
	mu    sync.Mutex
	taken map[int]bool
}

// Next is a port that nobody listens on.
func (a *Allocator) Next() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.taken == nil {
		a.taken = map[int]bool{}
	}

	for range attempts {
		port := first + rand.IntN(last-first) //nolint:gosec // nothing secret about a port
		if a.taken[port] || !free(port) {
			continue
		}

		a.taken[port] = true

		return port, nil
	}

	return 0, fmt.Errorf("looking from %d to %d: %w", first, last, ErrNone)
}

func free(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // does not block
	if err != nil {
		return false
	}

	return listener.Close() == nil
}
