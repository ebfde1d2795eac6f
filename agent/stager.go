package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

const (
	// stagingBackoff doubles from the first to the last after each failure in a row.
	stagingBackoffFirst = 5 * time.Second
	stagingBackoffLast  = 5 * time.Minute
	// progressParts is in how many parts of the work the engine is told of progress.
	progressParts = 20
)

// errStopped ends the background work on purpose.
var errStopped = errors.New("staging was stopped")

// stager does the work that takes long in the background: reading an image's config, and writing the image into the
// spare slot. One run at a time. The engine asks for its view each pass and is told when it changed.
type stager struct {
	scheme  slots.Scheme
	images  Images
	clock   clock.PassiveClock
	changed chan struct{}
	// spawn runs the work: `go work()`, or in a test at once.
	spawn func(work func())

	mutex  sync.Mutex
	now    staging
	pace   osimage.Pace
	source slots.Source
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// start begins or goes on with the work for an attempt. The first run reads the config; once the engine has stored it,
// the next one stages.
func (s *stager) start(ctx context.Context, attempt journal.Attempt) {
	s.stop()

	s.mutex.Lock()

	if s.now.attempt != attempt.ID {
		s.now, s.pace, s.source = staging{attempt: attempt.ID}, osimage.Pace{}, nil
	}

	s.now.running, s.now.staged, s.now.err = true, false, nil
	source := s.source
	runCtx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	s.cancel, s.done = cancel, done

	s.mutex.Unlock()

	s.spawn(func() {
		defer close(done)
		defer cancel(nil)

		s.finish(s.run(runCtx, attempt, source))
	})
}

// stop ends the work and waits until it has ended. What was written stays, and a later start goes on from there.
func (s *stager) stop() {
	s.mutex.Lock()
	cancel, done := s.cancel, s.done
	s.mutex.Unlock()

	if done == nil {
		return
	}

	cancel(errStopped)
	<-done
}

// view is where the work is.
func (s *stager) view() staging {
	s.mutex.Lock()
	defer s.mutex.Unlock()

	now := s.now
	if now.progress == nil || !now.running {
		return now
	}

	// As of now: when nothing moves, nothing tells so.
	at := s.clock.Now()
	now.line += s.pace.Text(at)

	if left := s.pace.Left(at); left > 0 && now.stage != osimage.Surveying {
		now.progress = now.progress.DeepCopy()
		now.progress.EstimatedEnd = metaTime(at.Add(left))
	}

	return now
}

func (s *stager) run(ctx context.Context, attempt journal.Attempt, source slots.Source) error {
	if source == nil {
		found, err := s.images.Image(ctx, attempt.Image, attempt.Verification)
		if err != nil {
			return err
		}

		s.learned(found)

		source = found.Source
	}

	if attempt.Config == nil {
		return nil // The engine looks at the slots first, with the root hash that it has learned.
	}

	if err := s.scheme.Check(ctx, *attempt.Config); err != nil {
		return err
	}

	if err := s.scheme.Stage(ctx, source, s.progress); err != nil {
		return err
	}

	s.mutex.Lock()
	s.now.staged = true
	s.mutex.Unlock()

	return nil
}

func (s *stager) learned(found Image) {
	config := found.Config()

	s.mutex.Lock()
	s.source, s.now.image, s.now.signature = found.Source, &config, found.Signature
	s.mutex.Unlock()
}

// slotContents are the contents that go into a slot or onto the boot partition.
func slotContents(config osimage.Config) []osimage.Content {
	var contents []osimage.Content

	for _, content := range config.Contents {
		if !content.Role.FirstDiskOnly() {
			contents = append(contents, content)
		}
	}

	return contents
}

func (s *stager) finish(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()

	s.now.running = false
	s.done = nil

	switch {
	case err == nil:
		s.now.failures = 0
	case errors.Is(err, context.Canceled): // stopped on purpose
		s.now.err = nil
	default:
		s.now.err = err
		s.now.retryAt = s.clock.Now().Add(backoff(s.now.failures, stagingBackoffFirst, stagingBackoffLast))
		s.now.failures++
	}

	s.tell()
}

// backoff doubles with each failure in a row, from first to last.
func backoff(failures int, first, last time.Duration) time.Duration {
	wait := first
	for range failures {
		if wait *= 2; wait >= last {
			return last
		}
	}

	return wait
}

func (s *stager) progress(now osimage.Progress) {
	s.mutex.Lock()
	defer s.mutex.Unlock()

	s.pace.Note(s.clock.Now(), now)

	stage, before := s.now.stage, s.now.progress
	s.now.stage, s.now.line = now.Stage, now.String()
	s.now.progress = &v1alpha1.Progress{
		BytesDone: now.Verified, BytesTotal: now.Total, BytesRead: now.Surveyed, BytesToRead: now.ToSurvey,
		BytesFetched: now.Fetched, BytesToFetch: now.ToFetch, BytesReused: now.Reused,
	}

	if stage != now.Stage || share(s.now.progress)*progressParts/percent != share(before)*progressParts/percent {
		s.tell()
	}
}

func (s *stager) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
