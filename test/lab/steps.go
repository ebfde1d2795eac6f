package lab

import (
	"context"
	"fmt"
	"time"
)

// progressInterval is how often a step that takes long says that it is still at work.
const progressInterval = 15 * time.Second

// step is one part of bringing a lab up, with a name for people.
type step struct {
	name string
	run  func(ctx context.Context) error
}

// steps runs one step after the other and reports how long each took.
func (l *Lab) steps(ctx context.Context, steps []step) error {
	for _, step := range steps {
		if err := l.step(ctx, step); err != nil {
			return err
		}
	}

	return nil
}

func (l *Lab) step(ctx context.Context, step step) error {
	started := time.Now()
	done := make(chan error, 1)

	go func() { done <- step.run(ctx) }()

	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()

	for {
		select {
		case err := <-done:
			took := time.Since(started)
			if err != nil {
				return fmt.Errorf("%s (after %s): %w", step.name, took.Round(time.Second), err)
			}

			l.report("%s: ready (%.1f s)", step.name, took.Seconds())

			return nil
		case <-ticker.C:
			l.report("%s: still at work (%.0f s)", step.name, time.Since(started).Seconds())
		}
	}
}
