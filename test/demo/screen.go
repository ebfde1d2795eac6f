package demo

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// quiet is how long a plain output may go without a line.
const quiet = 30 * time.Second

// Screen shows lines that stay and, below them, a block that is drawn anew: on a terminal in place, elsewhere only when
// nothing was shown for half a minute. It is safe for use by many.
type Screen struct {
	mu    sync.Mutex
	out   io.Writer
	width func() int
	clock clock.PassiveClock
	began time.Time
	said  time.Time
	// pinned are the lines of the block as they were given, drawn how many of them stand on the terminal.
	pinned []string
	drawn  int
}

// NewScreen shows on out. width tells the columns of the terminal that out is; nil when it is none.
func NewScreen(out io.Writer, width func() int, now clock.PassiveClock) *Screen {
	return &Screen{out: out, width: width, clock: now, began: now.Now(), said: now.Now()}
}

// Linef shows a line that stays, with the time since the beginning.
func (s *Screen) Linef(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()

	since := s.clock.Since(s.began).Seconds()
	s.keep(fmt.Sprintf("[%6.1fs] ", since) + fmt.Sprintf(format, args...) + "\n")
}

// Text shows lines that stay as they are.
func (s *Screen) Text(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.keep(strings.TrimSuffix(text, "\n") + "\n")
}

// Pin shows a block in the place of the one before; "" takes it away.
func (s *Screen) Pin(block string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.pinned = nil
	if block != "" {
		s.pinned = strings.Split(strings.TrimSuffix(block, "\n"), "\n")
	}

	switch {
	case s.width != nil:
		s.write(s.erase() + s.draw())
	case block != "" && s.clock.Since(s.said) >= quiet:
		s.keep(strings.Join(s.pinned, "\n") + "\n")
	}
}

func (s *Screen) keep(text string) {
	s.said = s.clock.Now()

	if s.width == nil {
		s.write(text)

		return
	}

	s.write(s.erase() + text + s.draw())
}

// erase moves to the first line of the block and clears from there on.
func (s *Screen) erase() string {
	if s.drawn == 0 {
		return ""
	}

	return fmt.Sprintf("\x1b[%dA\x1b[J", s.drawn)
}

// draw cuts lines off at the terminal's edge: a line that wraps would take two, and erase would miss one.
func (s *Screen) draw() string {
	var text strings.Builder

	width := max(1, s.width()-1)

	for _, line := range s.pinned {
		if runes := []rune(line); len(runes) > width {
			line = string(runes[:width])
		}

		text.WriteString(line + "\n")
	}

	s.drawn = len(s.pinned)

	return text.String()
}

// write loses what a broken output does not take: the verdict does not depend on it.
func (s *Screen) write(text string) {
	_, _ = io.WriteString(s.out, text)
}
