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
	"github.com/stayput-dev/stayput/test/lab"
)

const (
	observeInterval = time.Second
	// goneWait bounds the deletion of the HostPool at the end.
	goneWait = 2 * time.Minute

	poolName = "scenario"
)

// The ways in which a scenario fails.
var (
	// ErrOutcome means that it ended otherwise than it should.
	ErrOutcome = errors.New("the scenario ended otherwise")
	// ErrInvariant means that something happened that never may.
	ErrInvariant = errors.New("an invariant does not hold")
)

// Run is a scenario that is being played.
type Run struct {
	Scenario Scenario
	Lab      *lab.Lab
	// Log receives a line for each thing that changes.
	Log func(format string, args ...any)

	before   map[string]Snapshot
	began    time.Time
	timeline timeline
	resets   int
	said     map[string]string
}

// Play plays the scenario to its end and checks everything. It may be called once.
func (r *Run) Play(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.Scenario.Limit)
	defer cancel()

	if err := r.prepare(ctx); err != nil {
		return err
	}

	world, err := r.untilEnd(ctx)
	if err != nil {
		return err
	}

	return errors.Join(r.checkOutcome(world), r.checkInvariants(ctx, world), r.finish(ctx))
}

// prepare records how the nodes are, and asks for the update.
func (r *Run) prepare(ctx context.Context) error {
	r.said = map[string]string{}
	r.began = time.Now()

	var err error
	if r.before, err = r.snapshots(ctx); err != nil {
		return err
	}

	for node, snapshot := range r.before {
		if !strings.HasSuffix(snapshot.OS, " "+r.Scenario.From) {
			return fmt.Errorf("%w: %s runs %q before it begins, want version %s", ErrOutcome, node, snapshot.OS, r.Scenario.From)
		}
	}

	if r.resets, err = r.countResets(); err != nil {
		return err
	}

	image, err := r.Lab.BuildImage(ctx, r.Scenario.To)
	if err != nil {
		return err
	}

	reference, _, err := r.Lab.PushImage(ctx, image)
	if err != nil {
		return err
	}

	pool := &v1alpha1.HostPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: poolName},
		Spec: v1alpha1.HostPoolSpec{
			HostSelector: metav1.LabelSelector{MatchLabels: map[string]string{lab.PoolLabel: lab.PoolValue}},
			Release: v1alpha1.Release{
				OS: v1alpha1.ImageSource{Image: reference, PullSecretName: lab.PullSecret},
			},
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

	r.Log("asked for OS %s (%s)", r.Scenario.To, reference)

	return nil
}

// untilEnd observes, takes the steps whose time has come, and returns what it saw last.
func (r *Run) untilEnd(ctx context.Context) (*World, error) {
	steps := r.Scenario.Steps

	for {
		world, err := r.observe(ctx)
		if err != nil {
			return nil, err
		}

		r.Lab.Prioritize()
		r.tell(world)
		r.timeline.add(world)

		if len(steps) > 0 && steps[0].When(world) {
			r.Log("now: %s", steps[0].Name)

			if err := steps[0].Do(ctx, r); err != nil {
				return nil, fmt.Errorf("%s: %w", steps[0].Name, err)
			}

			steps = steps[1:]
		}

		if len(steps) == 0 && r.ended(world) {
			return world, nil
		}

		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no end after %s; last seen: %s", ErrOutcome, r.Scenario.Limit, r.summary(world))
		case <-time.After(observeInterval):
		}
	}
}

// observe reads everything once. A read that fails because the API server is busy is tried again with the next.
func (r *Run) observe(ctx context.Context) (*World, error) {
	world := &World{At: time.Now(), Nodes: map[string]*corev1.Node{}, Updates: map[string]*v1alpha1.NodeUpdate{}}

	var (
		nodes   corev1.NodeList
		updates v1alpha1.NodeUpdateList
	)

	key := client.ObjectKey{Namespace: lab.Namespace, Name: poolName}

	err := errors.Join(
		r.Lab.ManagementClient.Get(ctx, key, &world.Pool), r.Lab.Client.List(ctx, &nodes), r.Lab.Client.List(ctx, &updates))
	if err != nil {
		return nil, fmt.Errorf("observing: %w", err)
	}

	for index := range nodes.Items {
		world.Nodes[nodes.Items[index].Name] = &nodes.Items[index]
	}

	for index := range updates.Items {
		world.Updates[updates.Items[index].Name] = &updates.Items[index]
	}

	return world, nil
}

// ended tells whether nothing more will happen, whether or not it is what is wanted.
func (r *Run) ended(world *World) bool {
	if world.Pool.Status.ObservedGeneration != world.Pool.Generation {
		return false
	}

	if len(world.Unavailable()) > 0 || world.condition(v1alpha1.ConditionProgressing) == string(metav1.ConditionTrue) {
		return false
	}

	return world.condition(v1alpha1.ConditionReady) == string(metav1.ConditionTrue) ||
		world.condition(v1alpha1.ConditionHalted) == string(metav1.ConditionTrue)
}

// tell logs what has changed since it told last.
func (r *Run) tell(world *World) {
	for name, update := range world.Updates {
		status := update.Status
		line := fmt.Sprintf("%s: %s (%s), slot %s, runs %s", name, status.Phase, status.Reason, status.Running.Name, status.Running.Version)

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

func (r *Run) summary(world *World) string {
	lines := make([]string, 0, len(r.said)+len(world.Pool.Status.Conditions))
	for _, line := range r.said {
		lines = append(lines, line)
	}

	for _, condition := range world.Pool.Status.Conditions {
		lines = append(lines, fmt.Sprintf("pool %s=%s (%s: %s)", condition.Type, condition.Status, condition.Reason, condition.Message))
	}

	slices.Sort(lines)

	return strings.Join(lines, "; ")
}

// checkOutcome compares the end with what is wanted.
func (r *Run) checkOutcome(world *World) error {
	var errs []error

	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrOutcome, fmt.Sprintf(format, args...)))
	}

	want := r.Scenario.Want
	tried := 0

	for name := range r.before {
		record := newestRecord(world.Updates[name], r.began)
		if record == nil {
			if !want.Halted {
				bad("%s was not tried", name)
			}

			continue
		}

		tried++

		if record.Phase != want.Phase || record.Reason != want.Reason || record.Rung != want.Rung {
			bad("%s ended %s (%s) by rung %q: %s; want %s (%s) by rung %q",
				name, record.Phase, record.Reason, record.Rung, record.Message, want.Phase, want.Reason, want.Rung)
		}
	}

	if want.Halted && tried != 1 {
		bad("%d nodes were tried, want the rollout to halt after 1", tried)
	}

	if halted := world.condition(v1alpha1.ConditionHalted) == string(metav1.ConditionTrue); halted != want.Halted {
		bad("halted is %v, want %v", halted, want.Halted)
	}

	resets, err := r.countResets()
	if err == nil && resets-r.resets < want.MinResets {
		bad("the BMC acted %d times, want %d at least", resets-r.resets, want.MinResets)
	}

	return errors.Join(append(errs, err)...)
}

// newestRecord is the newest attempt that ended since then, nil when there is none.
func newestRecord(update *v1alpha1.NodeUpdate, since time.Time) *v1alpha1.AttemptRecord {
	if update == nil || len(update.Status.History) == 0 {
		return nil
	}

	record := &update.Status.History[0]
	// The status has whole seconds.
	if record.EndedAt == nil || record.EndedAt.Time.Before(since.Truncate(time.Second)) {
		return nil
	}

	return record
}

func (r *Run) countResets() (int, error) {
	total := 0

	for name := range r.before {
		machine, err := r.Lab.Machine(name)
		if err != nil {
			return 0, err
		}

		resets, err := r.Lab.BMC.Resets(machine.UUID())
		if err != nil {
			return 0, fmt.Errorf("counting the resets of %s: %w", name, err)
		}

		total += resets
	}

	return total, nil
}

// finish takes the HostPool away, so that the next scenario begins clean.
func (r *Run) finish(ctx context.Context) error {
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: poolName}}
	if err := r.Lab.ManagementClient.Delete(ctx, pool); err != nil {
		return fmt.Errorf("deleting the HostPool: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, goneWait)
	defer cancel()

	for {
		err := r.Lab.ManagementClient.Get(ctx, client.ObjectKeyFromObject(pool), pool)
		if apierrors.IsNotFound(err) {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the HostPool to go: %w", ctx.Err())
		case <-time.After(observeInterval):
		}
	}
}
