package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

const (
	outagePoll = 500 * time.Millisecond
	// outageWait bounds one reboot, and one update with its staging, of an emulated machine.
	outageWait  = 20 * time.Minute
	outagePairs = 5
	// outagePool is the HostPool that the updates are asked for with.
	outagePool = "outage"
)

var (
	errPairs      = errors.New("--pairs must be at least 1")
	errNotUpdated = errors.New("the update did not succeed")
)

func newOutageCommand(shared *flags) *cobra.Command {
	var (
		node  string
		pairs int
	)

	cmd := &cobra.Command{
		Use:   "outage",
		Short: "Measure what an update adds to a plain reboot of the same machine, in alternated pairs",
		Long: `Measure what an update adds to a plain reboot of the same machine, in alternated pairs.

Needs a running lab (make lab). Each pair is one "systemctl reboot" and one update to the next version; which goes first
alternates. Both times are of this machine's clock and end when the Node is Ready under another boot ID. The plain reboot's
begins when the command is given over SSH, as much later as a command that does nothing takes; the update's when the
agent's phase is seen to be Rebooting, which is looked for twice a second.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pairs < 1 {
				return fmt.Errorf("%w, not %d", errPairs, pairs)
			}

			running, err := open(cmd.Context(), shared)
			if err != nil {
				return err
			}

			measured := &outage{Lab: running, node: node, out: cmd.OutOrStdout()}

			return measured.run(cmd.Context(), pairs)
		},
	}
	cmd.Flags().StringVar(&node, "node", "node-1", "the Node, which runs the lab's first version")
	cmd.Flags().IntVar(&pairs, "pairs", outagePairs, "how many pairs are measured")

	return cmd
}

// outage measures reboots of one machine.
type outage struct {
	*lab.Lab

	node string
	out  io.Writer
}

func (o *outage) run(ctx context.Context, pairs int) error {
	references := make([]string, pairs)

	// Before anything is measured: the machine shares the processors with what builds.
	for pair := range pairs {
		image, err := o.BuildImage(ctx, osbuild.Variant{Version: fmt.Sprintf("1.%d.0", pair+1)})
		if err != nil {
			return err
		}

		if references[pair], _, err = o.PushImage(ctx, image); err != nil {
			return err
		}
	}

	table := tabwriter.NewWriter(o.out, 0, 0, 2, ' ', 0) //nolint:mnd // two blanks between columns
	fmt.Fprint(table, "PAIR\tPLAIN REBOOT\tUPDATE\tRATIO\n")

	for pair, reference := range references {
		plain, update, err := o.pair(ctx, reference, pair%2 == 0) //nolint:mnd // every other one
		if err != nil {
			return fmt.Errorf("measuring pair %d: %w", pair+1, err)
		}

		fmt.Fprintf(table, "%d\t%.1f s\t%.1f s\t%.2f\n", pair+1, plain.Seconds(), update.Seconds(),
			update.Seconds()/plain.Seconds())

		if err := table.Flush(); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}

	return nil
}

// pair measures both, in one order or the other.
func (o *outage) pair(ctx context.Context, reference string, plainFirst bool) (plain, update time.Duration, err error) {
	if plainFirst {
		if plain, err = o.plain(ctx); err != nil {
			return 0, 0, err
		}
	}

	if update, err = o.update(ctx, reference); err != nil {
		return 0, 0, err
	}

	if !plainFirst {
		plain, err = o.plain(ctx)
	}

	return plain, update, err
}

// plain reboots the machine as a person would.
func (o *outage) plain(ctx context.Context) (time.Duration, error) {
	machine, err := o.Machine(o.node)
	if err != nil {
		return 0, err
	}

	before, err := o.get(ctx)
	if err != nil {
		return 0, err
	}

	began := time.Now()

	if _, err := machine.SSH(ctx, "true"); err != nil {
		return 0, fmt.Errorf("reaching %s: %w", o.node, err)
	}

	began = time.Now().Add(time.Since(began))

	// The answer may be lost with the connection; whether the machine goes down is what counts.
	_, lost := machine.SSH(ctx, "systemctl reboot")

	took, err := o.untilReady(ctx, before.Status.NodeInfo.BootID, began)
	if err != nil {
		return 0, errors.Join(err, lost)
	}

	return took, nil
}

// update asks for the next version and waits for all of it.
func (o *outage) update(ctx context.Context, reference string) (time.Duration, error) {
	before, err := o.get(ctx)
	if err != nil {
		return 0, err
	}

	old, err := o.nodeUpdate(ctx)
	if err != nil {
		return 0, err
	}

	if err := o.ask(ctx, reference); err != nil {
		return 0, err
	}

	if err := o.untilPhase(ctx, old.Spec.Attempt, v1alpha1.PhaseRebooting); err != nil {
		return 0, err
	}

	took, err := o.untilReady(ctx, before.Status.NodeInfo.BootID, time.Now())
	if err != nil {
		return 0, err
	}

	return took, o.untilPhase(ctx, old.Spec.Attempt, v1alpha1.PhaseSucceeded)
}

func (o *outage) ask(ctx context.Context, reference string) error {
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: outagePool}}

	_, err := controllerutil.CreateOrUpdate(ctx, o.ManagementClient, pool, func() error {
		pool.Spec.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{lab.NodeLabel: o.node}}
		pool.Spec.Release.OS = v1alpha1.ImageSource{Image: reference, PullSecretName: lab.PullSecret}

		if o.Management != o.Cluster {
			pool.Spec.Cluster = &v1alpha1.ClusterReference{KubeconfigSecretName: lab.ClusterSecret}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("asking for the update: %w", err)
	}

	return nil
}

// untilPhase waits until the agent is in the phase for another attempt than the old one, and for the end also until the
// Node serves again.
func (o *outage) untilPhase(ctx context.Context, old string, phase v1alpha1.Phase) error {
	return o.poll(ctx, "waiting until "+string(phase)+" is the phase of", func(ctx context.Context) (bool, error) {
		update, err := o.nodeUpdate(ctx)
		if err != nil || update.Status.Attempt == old || update.Status.Attempt != update.Spec.Attempt {
			return false, err
		}

		switch {
		case update.Status.Phase == phase && phase.Ended():
			node, err := o.get(ctx)

			return err == nil && !node.Spec.Unschedulable, err
		case update.Status.Phase.Ended():
			return false, fmt.Errorf("%w: %s (%s)", errNotUpdated, update.Status.Phase, update.Status.Message)
		default:
			return update.Status.Phase == phase, nil
		}
	})
}

// untilReady is how long it takes from began until the Node is Ready in another boot than the one given.
func (o *outage) untilReady(ctx context.Context, boot string, began time.Time) (time.Duration, error) {
	var took time.Duration

	err := o.poll(ctx, "waiting for the Node after a reboot", func(ctx context.Context) (bool, error) {
		node, err := o.get(ctx)
		if err != nil || node.Status.NodeInfo.BootID == boot {
			return false, err
		}

		ready, _ := lab.Ready(node)
		took = time.Since(began)

		return ready, nil
	})

	return took, err
}

func (o *outage) poll(ctx context.Context, what string, done wait.ConditionWithContextFunc) error {
	if err := wait.PollUntilContextTimeout(ctx, outagePoll, outageWait, true, done); err != nil {
		return fmt.Errorf("%s %s: %w", what, o.node, err)
	}

	return nil
}

func (o *outage) get(ctx context.Context) (*corev1.Node, error) {
	var node corev1.Node
	if err := o.Client.Get(ctx, client.ObjectKey{Name: o.node}, &node); err != nil {
		return nil, fmt.Errorf("reading Node %s: %w", o.node, err)
	}

	return &node, nil
}

func (o *outage) nodeUpdate(ctx context.Context) (*v1alpha1.NodeUpdate, error) {
	var update v1alpha1.NodeUpdate

	err := o.Client.Get(ctx, client.ObjectKey{Name: o.node}, &update)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading NodeUpdate %s: %w", o.node, err)
	}

	return &update, nil
}
