package osimage

import (
	"context"
	"sync"
)

// portion is a part of a content on its way to the target: bytes, or so many bytes that are there already, or zeros.
type portion struct {
	data        []byte
	kept, zeros int64
}

func (p portion) size() int64 { return int64(len(p.data)) + p.kept + p.zeros }

// feed is between a supply and the writer. It has a few buffers, which go round.
type feed struct {
	free    chan []byte
	full    chan portion
	written *mark
}

func newFeed(start int64, size int64) *feed {
	result := &feed{free: make(chan []byte, pieces), full: make(chan portion, pieces), written: newMark(start)}

	for range pieces {
		result.free <- make([]byte, size)
	}

	return result
}

// buffer waits for a buffer of full length. It comes back when what was put of it is written.
func (f *feed) buffer(ctx context.Context) ([]byte, error) {
	select {
	case buffer := <-f.free:
		return buffer[:cap(buffer)], nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put hands the next bytes on.
func (f *feed) put(ctx context.Context, next portion) error {
	select {
	case f.full <- next:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reached is called by the writer when a portion is on the target.
func (f *feed) reached(position int64, done portion) {
	if done.data != nil {
		f.free <- done.data
	}

	f.written.move(position)
}

// mark is a position that only grows.
type mark struct {
	mutex    sync.Mutex
	position int64
	// moved is closed when the position changes.
	moved chan struct{}
}

func newMark(position int64) *mark {
	return &mark{position: position, moved: make(chan struct{})}
}

func (m *mark) move(position int64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()

	m.position = position

	close(m.moved)
	m.moved = make(chan struct{})
}

// wait returns when the position is reached.
func (m *mark) wait(ctx context.Context, position int64) error {
	for {
		m.mutex.Lock()
		reached, moved := m.position >= position, m.moved
		m.mutex.Unlock()

		if reached {
			return nil
		}

		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
