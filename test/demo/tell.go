package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/stayput-dev/stayput/api/statustable"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/e2e"
	"github.com/stayput-dev/stayput/test/lab"
)

// Tell plays a chapter on the lab, with its nodes in the block below, and checks it. When ctx is done it returns at
// once: the lab is taken away then, and nobody waits until the scenario has cleaned up.
func (s *Show) Tell(ctx context.Context, running *lab.Lab, chapter *Chapter) Told {
	watch := &watch{record: &Record{}}
	told := Told{Chapter: chapter, Record: watch.record}

	told.Err = s.Run(ctx, chapter.Part, func(ctx context.Context, show func(string)) error {
		scenario := chapter.Scenario
		scenario.Incidents = []e2e.Incident{{
			Name: chapter.Name,
			Steps: []e2e.Step{{
				Name: "the rollout has come to a rest; checking what must hold",
				When: func(world *e2e.World) bool {
					show(table(world))

					return watch.see(world)
				},
			}},
			Check: func(_ *e2e.Run, world *e2e.World) error {
				watch.see(world)

				return chapter.Check(watch.record)
			},
		}}

		run := &e2e.Run{Scenario: scenario, Lab: running, Log: s.Screen.Linef}
		done := make(chan error, 1)

		go func() { done <- run.Play(ctx) }()

		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			watch.end()

			return fmt.Errorf("stopped: %w", ctx.Err())
		}
	})

	return told
}

// watch is a record that may be written until its end.
type watch struct {
	mu     sync.Mutex
	record *Record
	over   bool
}

func (w *watch) see(world *e2e.World) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	return !w.over && w.record.See(world)
}

func (w *watch) end() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.over = true
}

// table is the table of `stayput status`, by node.
func table(world *e2e.World) string {
	updates := make([]v1alpha1.NodeUpdate, 0, len(world.Updates))
	for _, update := range world.Updates {
		updates = append(updates, *update)
	}

	slices.SortFunc(updates, func(a, b v1alpha1.NodeUpdate) int { return strings.Compare(a.Name, b.Name) })

	var text strings.Builder
	if err := statustable.Write(&text, &world.Pool, updates, world.At); err != nil {
		fmt.Fprintf(&text, "Error: %v\n", err)
	}

	return text.String()
}
