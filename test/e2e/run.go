package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/test/lab"
)

const (
	observeInterval = time.Second
	// goneWait bounds the deletion of the HostPool at the end, and calmWait the wait for machines that the scenario
	// before has left in trouble.
	goneWait = 2 * time.Minute
	calmWait = 6 * time.Minute
	// cleanWait is how long after the pool says that all is done the last labels may still be on the Nodes.
	cleanWait = 20 * time.Second
)

// The ways in which a scenario fails.
var (
	// ErrOutcome means that it ended otherwise than it should.
	ErrOutcome = errors.New("the scenario ended otherwise")
	// ErrInvariant means that something happened that never may.
	ErrInvariant = errors.New("an invariant does not hold")
	// ErrLeftOver means that the machines were not in order before it began.
	ErrLeftOver = errors.New("the machines are not in order before the scenario begins")
)

// Run is a scenario that is being played.
type Run struct {
	Scenario Scenario
	Lab      *lab.Lab
	// Controller is the program of the controller, for scenarios that start it anew.
	Controller string
	// Log receives a line for each thing that changes.
	Log func(format string, args ...any)

	before   map[string]Snapshot
	began    time.Time
	ended    time.Time // when the pool first said that all is done, zero while it does not
	last     *World
	timeline timeline
	witness  *witness
	image    osimage.Config
	resets   int
	said     map[string]string
	// felled are the nodes whose power the scenario has cut: that they are not Ready is not Stayput's doing.
	felled []string
}

// Play plays the scenario to its end and checks everything. It may be called once.
func (r *Run) Play(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, r.Scenario.Limit)
	defer cancel()

	r.said = map[string]string{}

	// The next scenario of these machines counts on it, so it is done after a failure, too.
	defer func() { err = errors.Join(err, r.finish(context.WithoutCancel(ctx))) }()

	if err := r.prepare(ctx); err != nil {
		return err
	}

	world, err := r.untilEnd(ctx)
	if err != nil {
		return err
	}

	r.tellTimes(world)

	return errors.Join(r.checkOutcome(world), r.checkInvariants(ctx, world), r.checkPods(ctx, world), r.check(world))
}

func (r *Run) check(world *World) error {
	var errs []error

	for _, incident := range r.Scenario.Incidents {
		if incident.Check == nil {
			continue
		}

		if err := incident.Check(r, world); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", incident.Name, err))
		}
	}

	return errors.Join(errs...)
}

// prepare waits until the machines are in order, records how they are, and asks for the update.
func (r *Run) prepare(ctx context.Context) error {
	image, err := r.Lab.BuildImage(ctx, r.Scenario.To)
	if err != nil {
		return err
	}

	source, err := osimage.OpenLayout(ctx, image.Layout, image.Tag)
	if err != nil {
		return fmt.Errorf("opening OS %s: %w", r.Scenario.To, err)
	}

	r.image = source.Config()

	reference, _, err := r.Lab.PushImage(ctx, image)
	if err != nil {
		return err
	}

	if err := r.calm(ctx); err != nil {
		return err
	}

	r.began = time.Now()

	if r.before, err = r.snapshots(ctx); err != nil {
		return err
	}

	if r.resets, err = r.countResets(); err != nil {
		return err
	}

	if r.witness, err = watchNodes(ctx, r.Lab.Cluster); err != nil {
		return err
	}

	for _, incident := range r.Scenario.Incidents {
		if incident.Before == nil {
			continue
		}

		if err := incident.Before(ctx, r); err != nil {
			return fmt.Errorf("%s: %w", incident.Name, err)
		}
	}

	return r.ask(ctx, reference)
}

// calm waits until the machines have power, are Ready and carry no marks, and their pods run.
func (r *Run) calm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, calmWait)
	defer cancel()

	for _, name := range r.Scenario.Machines {
		machine, err := r.Lab.Machine(name)
		if err != nil {
			return err
		}

		if running, err := machine.Running(ctx); err == nil && !running {
			r.Log("%s: is off; switching it on", name)

			if err := machine.PowerOn(ctx); err != nil {
				return err
			}
		}
	}

	for {
		trouble, err := r.trouble(ctx)
		if err == nil && trouble == "" {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w", ErrLeftOver, trouble, errors.Join(ctx.Err(), err))
		case <-time.After(observeInterval):
		}
	}
}

// trouble says what keeps the scenario from beginning, "" for nothing.
func (r *Run) trouble(ctx context.Context) (string, error) {
	world, err := r.observe(ctx)
	if err != nil {
		return "", err
	}

	for _, name := range r.Scenario.Machines {
		node := world.Nodes[name]
		if node == nil {
			return name + " has no Node", nil
		}

		if ready, why := lab.Ready(node); !ready {
			return fmt.Sprintf("%s is not Ready (%s)", name, why), nil
		}

		if found := marks(node); node.Spec.Unschedulable || len(found) > 0 {
			return fmt.Sprintf("%s is cordoned (%v) or marked (%v)", name, node.Spec.Unschedulable, found), nil
		}
	}

	return r.notServing(ctx, nil)
}

// ask makes the HostPool.
func (r *Run) ask(ctx context.Context, reference string) error {
	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: r.Scenario.poolName()},
		Spec: v1alpha1.HostPoolSpec{
			HostSelector: r.Scenario.selector(),
			Release:      v1alpha1.Release{OS: v1alpha1.ImageSource{Image: reference, PullSecretName: lab.PullSecret}},
		},
	}
	if r.Lab.Management != r.Lab.Cluster {
		pool.Spec.Cluster = &v1alpha1.ClusterReference{KubeconfigSecretName: lab.ClusterSecret}
	}

	if r.Scenario.Pool != nil {
		r.Scenario.Pool(&pool.Spec)
	}

	if err := r.Lab.ManagementClient.Create(ctx, pool); err != nil {
		return fmt.Errorf("making the HostPool: %w", err)
	}

	r.Log("asked for OS %s on %s (%s)", r.Scenario.To, strings.Join(r.Scenario.Machines, " and "), reference)

	return nil
}

// untilEnd observes, takes the steps whose time has come, and returns what it saw last.
func (r *Run) untilEnd(ctx context.Context) (*World, error) {
	left := make([][]Step, 0, len(r.Scenario.Incidents))
	for _, incident := range r.Scenario.Incidents {
		left = append(left, incident.Steps)
	}

	for {
		world, err := r.observe(ctx)
		if err == nil {
			r.last = world
			r.Lab.Prioritize()
			r.tell(world)
			r.timeline = r.timeline.with(world, r.felled)

			taken, failed := r.takeSteps(ctx, left, world)
			if failed != nil {
				return nil, failed
			}

			if !taken && r.atEnd(world) {
				return world, r.missed(left)
			}
		}

		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no end after %s; last seen: %s: %w",
				ErrOutcome, r.Scenario.Limit, r.summary(), errors.Join(err, ctx.Err()))
		case <-time.After(observeInterval): // also after a read that failed: the API servers are busy at times
		}
	}
}

// takeSteps takes the next step of each incident whose time has come off the list, and tells whether there was one. A
// step takes a while, so what comes next is decided by a new observation.
func (r *Run) takeSteps(ctx context.Context, left [][]Step, world *World) (bool, error) {
	for index, steps := range left {
		if len(steps) == 0 || !steps[0].When(world) {
			continue
		}

		r.Log("now: %s", steps[0].Name)

		if steps[0].Do != nil {
			if err := steps[0].Do(ctx, r); err != nil {
				return false, fmt.Errorf("%s: %w", steps[0].Name, err)
			}
		}

		left[index] = steps[1:]

		return true, nil
	}

	return false, nil
}

// missed says which steps are left at the end.
func (r *Run) missed(left [][]Step) error {
	var errs []error

	for _, steps := range left {
		if len(steps) > 0 {
			errs = append(errs, fmt.Errorf("%w: it ended before this could be done: %s; %s", ErrOutcome, steps[0].Name, r.summary()))
		}
	}

	return errors.Join(errs...)
}

// observe reads everything once.
func (r *Run) observe(ctx context.Context) (*World, error) {
	world := &World{At: time.Now(), Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{}}

	var (
		nodes   corev1.NodeList
		updates v1alpha1.NodeUpdateList
	)

	key := client.ObjectKey{Namespace: lab.Namespace, Name: r.Scenario.poolName()}

	err := errors.Join(client.IgnoreNotFound(r.Lab.ManagementClient.Get(ctx, key, &world.Pool)),
		r.Lab.Client.List(ctx, &nodes), r.Lab.Client.List(ctx, &updates))
	if err != nil {
		return nil, fmt.Errorf("observing: %w", err)
	}

	for index := range nodes.Items {
		if node := &nodes.Items[index]; slices.Contains(r.Scenario.Machines, node.Name) {
			world.Nodes[node.Name] = node
		}
	}

	all := map[string]*v1alpha1.NodeUpdate{}

	for index := range updates.Items {
		update := &updates.Items[index]
		all[update.Name] = update

		if slices.Contains(r.Scenario.Machines, update.Name) {
			world.Updates[update.Name] = update
		}
	}

	world.Staging = inPhase(all, v1alpha1.PhaseStaging)

	return world, nil
}

// atEnd tells whether nothing more will happen, whether or not it is what is wanted.
func (r *Run) atEnd(world *World) bool {
	done := world.Pool.Generation > 0 && world.Pool.Status.ObservedGeneration == world.Pool.Generation &&
		len(world.Unavailable()) == 0 && !world.holds(v1alpha1.ConditionProgressing) &&
		(world.holds(v1alpha1.ConditionReady) || world.holds(v1alpha1.ConditionHalted))
	if !done {
		r.ended = time.Time{}

		return false
	}

	if r.ended.IsZero() {
		r.ended = world.At
	}

	// The pool's status comes a moment before, or after, the last label is taken off.
	return len(world.marked()) == 0 || world.At.Sub(r.ended) > cleanWait
}

// tell logs what has changed since it told last.
func (r *Run) tell(world *World) {
	for name, update := range world.Updates {
		status := update.Status
		line := fmt.Sprintf("%s: %s (%s), slot %s, runs %s", name, status.Phase, status.Reason, status.Running.Name, status.Running.Version)

		if status.Phase == v1alpha1.PhaseStaging {
			line += fmt.Sprintf(", %d %%", world.Progress(name))
		}

		if oob := status.OutOfBand; oob != nil {
			line += fmt.Sprintf(", BMC %s (%s), %d resets", oob.Phase, oob.Reason, oob.Resets)
		}

		if node := world.Nodes[name]; node != nil {
			if ready, why := lab.Ready(node); !ready {
				line += ", not Ready (" + why + ")"
			}

			if node.Spec.Unschedulable {
				line += ", cordoned"
			}
		}

		if r.said[name] != line {
			r.said[name] = line
			r.Log("%s", line)
		}
	}
}

// tellTimes logs how long each node was away, for docs/measurements.md.
func (r *Run) tellTimes(world *World) {
	for _, name := range r.Scenario.Machines {
		record := r.record(world, name)
		if record == nil || record.ReadyAt == nil || record.EndedAt == nil {
			continue
		}

		r.Log("%s: %s (%s) by rung %q: %s", name, record.Phase, record.Reason, record.Rung, record.Message)
		r.Log("%s: drained %s after it was asked, answered %s later", name,
			record.ReadyAt.Sub(record.StartedAt.Time), record.EndedAt.Sub(record.ReadyAt.Time))
	}
}

// summary says what was seen last.
func (r *Run) summary() string {
	world := r.last
	if world == nil {
		return "nothing"
	}

	lines := make([]string, 0, len(r.said)+len(world.Pool.Status.Conditions))
	for _, line := range r.said {
		lines = append(lines, line)
	}

	for _, update := range world.Updates {
		lines = append(lines, update.Name+" says: "+update.Status.Message)
	}

	for _, condition := range world.Pool.Status.Conditions {
		lines = append(lines, fmt.Sprintf("pool %s=%s (%s: %s)", condition.Type, condition.Status, condition.Reason, condition.Message))
	}

	slices.Sort(lines)

	return strings.Join(lines, "; ")
}

// finish takes the HostPool away, and what Before and the steps have left, so that the next scenario begins clean.
func (r *Run) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, goneWait)
	defer cancel()

	var errs []error

	for _, incident := range r.Scenario.Incidents {
		if incident.After != nil {
			errs = append(errs, incident.After(ctx, r))
		}
	}

	return errors.Join(append(errs, r.deletePool(ctx))...)
}

func (r *Run) deletePool(ctx context.Context) error {
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: r.Scenario.poolName()}}
	if err := r.Lab.ManagementClient.Delete(ctx, pool); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting the HostPool: %w", err)
	}

	for {
		err := r.Lab.ManagementClient.Get(ctx, client.ObjectKeyFromObject(pool), pool)
		if apierrors.IsNotFound(err) {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the HostPool to go: %w", errors.Join(ctx.Err(), err))
		case <-time.After(observeInterval):
		}
	}
}
