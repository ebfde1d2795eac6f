package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/utils/clock"
)

// drawInterval is the pause between two drawings of the block below.
const drawInterval = time.Second

// Part is a stretch of the demonstration that a person waits for.
type Part struct {
	// Name says what is done, in a few words; it is also the key of its time.
	Name string
	// Telling explains it, in two lines or so.
	Telling string
}

// Show runs parts before a person's eyes.
type Show struct {
	Screen *Screen
	Times  *Times
	Clock  clock.WithTicker
}

// Run explains the part and runs it. While it runs, the block below shows how long it has been at work and how long it
// took the last time, and above that what the part gives to show.
func (s *Show) Run(ctx context.Context, part Part, run func(ctx context.Context, show func(block string)) error) error {
	last, known := s.Times.Last(part.Name)
	title := "== " + part.Name

	if known {
		title += " (last time " + seconds(last) + ")"
	}

	s.Screen.Text("\n" + title + "\n" + part.Telling)

	var (
		mu    sync.Mutex
		block string
	)

	done := make(chan error, 1)
	began := s.Clock.Now()

	go func() {
		done <- run(ctx, func(text string) {
			mu.Lock()
			defer mu.Unlock()

			block = text
		})
	}()

	ticker := s.Clock.NewTicker(drawInterval)
	defer ticker.Stop()
	defer s.Screen.Pin("")

	for {
		select {
		case err := <-done:
			s.Screen.Pin("")

			return s.end(part, s.Clock.Since(began), err)
		case <-ticker.C():
			footer := fmt.Sprintf("… %s: %s", part.Name, seconds(s.Clock.Since(began)))
			if known {
				footer += ", last time " + seconds(last)
			}

			mu.Lock()
			shown := block
			mu.Unlock()

			s.Screen.Pin(shown + footer)
		}
	}
}

func (s *Show) end(part Part, took time.Duration, err error) error {
	if err != nil {
		return fmt.Errorf("%s (after %s): %w", part.Name, seconds(took), err)
	}

	s.Screen.Linef("%s: done in %s", part.Name, seconds(took))

	if err := s.Times.Keep(part.Name, took); err != nil {
		s.Screen.Linef("%v; the next run will not know this time", err)
	}

	return nil
}

func seconds(d time.Duration) string {
	return fmt.Sprintf("%.0f s", d.Seconds())
}

const timesMode = 0o644

// Times are how long each part took the last time that it went well.
type Times struct {
	file string
	last map[string]float64 // seconds
}

// LoadTimes reads the times that an earlier run kept. A file that is missing or broken has none: it is a cache.
func LoadTimes(file string) *Times {
	times := &Times{file: file, last: map[string]float64{}}

	data, err := os.ReadFile(file)
	if err != nil {
		return times
	}

	if err := json.Unmarshal(data, &times.last); err != nil || times.last == nil {
		times.last = map[string]float64{}
	}

	return times
}

// Last is how long the part took the last time, if that is known.
func (t *Times) Last(part string) (time.Duration, bool) {
	last, known := t.last[part]

	return time.Duration(last * float64(time.Second)), known
}

// Keep writes down how long the part took.
func (t *Times) Keep(part string, took time.Duration) error {
	t.last[part] = took.Seconds()

	data, err := json.MarshalIndent(t.last, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the times: %w", err)
	}

	if err := renameio.WriteFile(t.file, data, timesMode); err != nil {
		return fmt.Errorf("keeping the time of %q: %w", part, err)
	}

	return nil
}
