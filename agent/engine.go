package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const (
	// slowTimer is how often the world is looked at when nothing tells of a change. It also feeds the watchdog.
	slowTimer = time.Minute
	// maxSteps bounds the steps of one pass; an attempt has about a dozen.
	maxSteps = 50
	// observeDeadline bounds reading the machine, effectDeadline one effect, and statusDeadline one status write.
	observeDeadline = time.Minute
	effectDeadline  = time.Minute
	statusDeadline  = 10 * time.Second
	// countEvery is after how many bytes the counters are stored while staging goes on.
	countEvery = 64 << 20
	// identityLasts is how much longer the agent's credentials must be valid when the node goes: the boot gate needs them
	// after the reboot, and so does the agent after a fallback. A machine takes minutes for a boot; this is for several.
	identityLasts = time.Hour
	// viewLag is how much older than a write of ours the view of the Node may be.
	viewLag = time.Minute
	// effectBackoff doubles from the first to the last after each failure in a row of the same effect.
	effectBackoffFirst = 2 * time.Second
	effectBackoffLast  = time.Minute
)

// errTooManySteps is returned by a pass that does not come to rest, which is an error in the decisions.
var errTooManySteps = errors.New("the agent's decisions do not come to rest")

// Options are what an Engine works with. All but Spawn, Clock and Log are required.
type Options struct {
	// Version is the agent's, for the status.
	Version  string
	Machine  Machine
	Scheme   slots.Scheme
	Images   Images
	Cluster  Cluster
	Store    Store
	Notifier Notifier
	// Clock is the real one when nil.
	Clock clock.Clock
	// Log gets no secrets.
	Log logr.Logger
	// Spawn starts background work; nil means a goroutine.
	Spawn func(work func())
	// Rested is called, when it is not nil, each time there is nothing more to do for a while, once.
	Rested func()
	// Moved is how many bytes this process has received from registries and written to slots and boot files so far.
	Moved func() (downloaded, written int64)
}

// Engine takes its node through attempts. It is used by one goroutine.
type Engine struct {
	Options

	stager  *stager
	changed chan struct{}

	state journal.State
	// fresh tells that there was no journal; loaded that it was looked for.
	fresh, loaded bool
	// asked tells that this process has asked for a reboot; reported is when it last answered on the Node.
	asked    bool
	reported time.Time
	// downloaded and written are what Moved said last; unsaved is counted but not stored yet.
	downloaded, written, unsaved int64

	failures map[action]failure
	shown    *v1alpha1.NodeUpdateStatus
	shownFor string
	// statusFailures and statusRetry slow down status writes that fail.
	statusFailures int
	statusRetry    time.Time
	rungs          []v1alpha1.RungStatus
	rungsAt        time.Time
	// rungsFor is the attempt whose image was staged when the rungs were looked at, "" for none.
	rungsFor string

	last  step
	since time.Time
	// rested tells that Rested was called since the last effect.
	rested bool
}

// failure is what an effect's last error was.
type failure struct {
	err   error
	count int
	retry time.Time
}

// New makes an Engine. It touches nothing.
func New(options Options) *Engine {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if options.Spawn == nil {
		options.Spawn = func(work func()) { go work() }
	}

	changed := make(chan struct{}, 1)

	return &Engine{
		Options: options, changed: changed, failures: map[action]failure{},
		stager: &stager{
			scheme: options.Scheme, images: options.Images, clock: options.Clock, changed: changed, spawn: options.Spawn,
		},
	}
}

// Run works until the context ends, then stops the background work and returns nil. It returns an error only when the
// journal can neither be read nor replaced, or when the decisions are wrong; restarting is then all that is left.
func (e *Engine) Run(ctx context.Context) error {
	e.Notifier.Ready()
	defer e.Notifier.Stopping()

	// What was moved until the work stopped is stored, too.
	defer func() {
		e.stager.stop()
		e.count(false)
	}()

	for {
		next, err := e.Pass(ctx)

		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}

		timer := e.Clock.NewTimer(min(max(next.Sub(e.Clock.Now()), 0), slowTimer))

		select {
		case <-ctx.Done():
			timer.Stop()

			return nil
		case <-e.changed:
		case <-e.Cluster.Changed():
		case <-timer.C():
		}

		timer.Stop()
	}
}

// Pass reads the world, decides and acts until there is nothing to do but to wait, and returns when to look again at
// the latest.
func (e *Engine) Pass(ctx context.Context) (time.Time, error) {
	if err := e.load(); err != nil {
		return time.Time{}, err
	}

	for range maxSteps {
		now, err := e.observe(ctx)
		if err != nil {
			return time.Time{}, err
		}

		next := e.hold(now, decide(now))
		e.note(now, next)
		e.Notifier.Alive(string(next.phase) + ": " + next.message)

		if next.do == wait {
			e.show(ctx, now, next)
			e.rest(now, next.phase)

			return e.wakeTime(now, next), nil
		}

		e.rested = false
		err = e.act(ctx, now, next)
		e.remember(next.do, err)

		if ctx.Err() != nil {
			return time.Time{}, ctx.Err()
		}
	}

	return time.Time{}, fmt.Errorf("%w: last step %s in phase %s", errTooManySteps, e.last.do, e.last.phase)
}

// rest tells that work has ended, in a phase that may last. Connecting to the API server is work.
func (e *Engine) rest(now world, phase v1alpha1.Phase) {
	lasts := phase == v1alpha1.PhaseIdle || phase == v1alpha1.PhaseStaged || phase.Ended()
	if !lasts || !now.updateKnown || e.stager.view().running {
		return
	}

	if !e.rested && e.Rested != nil {
		e.Rested()
	}

	e.rested = true
}

func (e *Engine) load() error {
	if e.loaded {
		return nil
	}

	state, lost, err := e.Store.Load()
	if err != nil {
		return fmt.Errorf("reading the agent's journal: %w", err)
	}

	e.state, e.fresh, e.loaded = state, lost, true
	e.downloaded, e.written = e.Moved()

	if lost {
		e.Log.Info("there is no journal that can be read (a damaged one is kept beside it); " +
			"the attempt is rebuilt from the slots and the API when there is one")
	}

	return nil
}

// save changes the journal: the change is on the disk when it returns nil, and not made at all when it does not.
func (e *Engine) save(change func(state *journal.State)) error {
	next := e.state.Clone()
	change(&next)

	if err := e.Store.Save(next); err != nil {
		return err
	}

	e.state, e.unsaved = next, 0

	return nil
}

// observe reads the world.
func (e *Engine) observe(ctx context.Context) (world, error) {
	ctx, cancel := context.WithTimeout(ctx, observeDeadline)
	defer cancel()

	bootID, err := e.Machine.BootID()
	if err != nil {
		return world{}, fmt.Errorf("reading the boot ID: %w", err)
	}

	now := world{
		now: e.Clock.Now(), bootID: bootID, fresh: e.fresh, askedReboot: e.asked, staging: e.stager.view(),
		justReported: e.Clock.Since(e.reported) < viewLag,
	}

	e.count(now.staging.running)
	now.journal = e.state
	now.slots, now.slotsErr = e.Scheme.Observe(ctx)

	if now.trial, err = e.Machine.Trial(); err != nil {
		e.Log.Error(err, "the trial file cannot be read")
	}

	if now.gate, err = e.Machine.Gate(); err != nil {
		e.Log.Error(err, "the boot gate's record cannot be read")
	}

	now.identityErr = e.Machine.CheckIdentity(now.now, now.now.Add(identityLasts))
	now.update, now.updateKnown = e.Cluster.Update()

	if node := e.Cluster.Node(); node != nil {
		view := protocol.Read(node)
		now.node = &view
	}

	return now, nil
}

// count adds the bytes that were moved since the last pass, and stores them when they are many or the work has ended.
func (e *Engine) count(running bool) {
	downloaded, written := e.Moved()
	e.state.Downloaded += downloaded - e.downloaded
	e.state.Written += written - e.written
	e.unsaved += downloaded - e.downloaded + written - e.written
	e.downloaded, e.written = downloaded, written

	if e.unsaved >= countEvery || (e.unsaved > 0 && !running) {
		if err := e.save(func(*journal.State) {}); err != nil {
			e.Log.Error(err, "the byte counters cannot be stored")
		}
	}
}

// hold turns a step whose effect has just failed into a wait.
func (e *Engine) hold(now world, next step) step {
	failed, found := e.failures[next.do]
	if !found || !now.now.Before(failed.retry) {
		return next
	}

	held := waitFor(next.phase, next.reason, fmt.Sprintf("%s failed, trying again at %s: %v",
		next.do, failed.retry.UTC().Format(time.TimeOnly), failed.err)).wakeAt(failed.retry)
	held.deadline = next.deadline

	return held
}

// remember keeps an effect's failure for hold, and forgets it when the effect has succeeded.
func (e *Engine) remember(what action, err error) {
	if err == nil {
		delete(e.failures, what)

		return
	}

	failed := e.failures[what]
	failed.err = err
	failed.retry = e.Clock.Now().Add(backoff(failed.count, effectBackoffFirst, effectBackoffLast))
	failed.count++
	e.failures[what] = failed

	e.Log.Error(err, "an effect failed and is tried again", "effect", what, "failures", failed.count, "next", failed.retry)
}

// note is the one place where steps are logged and timed.
func (e *Engine) note(now world, next step) {
	if next.do == e.last.do && next.phase == e.last.phase && next.reason == e.last.reason {
		e.last = next

		return
	}

	keys := []any{"phase", next.phase, "reason", next.reason, "message", next.message}
	if attempt := now.attempt(); attempt != nil {
		keys = append(keys, "attempt", attempt.ID)
	}

	if !e.since.IsZero() {
		keys = append(keys, "before", e.last.do, "took", now.now.Sub(e.since).Round(time.Millisecond).String())
	}

	e.Log.Info("step "+string(next.do), keys...)
	e.last, e.since = next, now.now
}

// wakeTime is when to look again: when the step says so, a status write is to be tried again, or a heartbeat is due.
func (e *Engine) wakeTime(now world, next step) time.Time {
	wake := now.now.Add(slowTimer)

	var heartbeat time.Time
	if e.shown != nil && now.update != nil && e.statusRetry.IsZero() {
		heartbeat = heartbeatDue(*e.shown)
	}

	for _, at := range []time.Time{next.wake, e.statusRetry, heartbeat} {
		if !at.IsZero() && at.Before(wake) {
			wake = at
		}
	}

	return wake
}

// show writes the status when it is worth it. A failure is tried again later and stops nothing.
func (e *Engine) show(ctx context.Context, now world, next step) {
	if now.update == nil || now.now.Before(e.statusRetry) {
		return
	}

	if uid := string(now.update.UID); e.shown == nil || e.shownFor != uid {
		e.shown, e.shownFor = now.update.Status.DeepCopy(), uid
	}

	status := statusOf(now, next, e.Scheme.Name(), e.Version, e.ladder(ctx, now))
	if !worthWriting(*e.shown, status) {
		e.statusFailures, e.statusRetry = 0, time.Time{}

		return
	}

	writeCtx, cancel := context.WithTimeout(ctx, statusDeadline)
	defer cancel()

	if err := e.Cluster.ApplyStatus(writeCtx, status); err != nil {
		e.statusRetry = now.now.Add(backoff(e.statusFailures, effectBackoffFirst, effectBackoffLast))
		e.statusFailures++
		e.Log.Error(err, "the status cannot be written", "failures", e.statusFailures, "next", e.statusRetry)

		return
	}

	e.shown = status.DeepCopy()
	e.statusFailures, e.statusRetry = 0, time.Time{}
}

// rungsEvery is how often the rungs of the ladder are looked at.
const rungsEvery = 10 * time.Minute

// ladder looks at the rungs now and then, since it asks systemd, which is slow, and when another image is staged, which
// brings its own command line.
func (e *Engine) ladder(ctx context.Context, now world) []v1alpha1.RungStatus {
	staged := ""
	if now.staging.staged {
		staged = now.staging.attempt
	}

	if e.rungs != nil && now.now.Sub(e.rungsAt) < rungsEvery && staged == e.rungsFor {
		return e.rungs
	}

	ctx, cancel := context.WithTimeout(ctx, observeDeadline)
	defer cancel()

	e.rungs, e.rungsAt, e.rungsFor = e.Machine.Rungs(ctx), now.now, staged

	return e.rungs
}
