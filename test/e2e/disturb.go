package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/test/lab"
)

const (
	agentUnit  = "stayput-agent.service"
	logindUnit = "systemd-logind.service"

	// commandWait bounds one command in an emulated guest, and restartWait the time until systemd has started an agent
	// anew that was killed: RestartSec=5 and its start.
	commandWait = time.Minute
	restartWait = 2 * time.Minute
)

// The ways in which a disturbance does not work as it is meant to, so that the scenario shows nothing.
var (
	errNotRestarted  = errors.New("systemd has not started the agent anew")
	errNotInBetween  = errors.New("the machine was not between arming and rebooting")
	errNothingToKill = errors.New("there is nothing to kill")
)

// command runs a shell command on a node's machine.
func (r *Run) command(ctx context.Context, node, command string) (string, error) {
	machine, err := r.Lab.Machine(node)
	if err != nil {
		return "", err
	}

	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()

	output, err := machine.SSH(ctx, command)

	return strings.TrimSpace(output), err
}

// slowAgent gives the agent a part of a processor until the machine boots anew or hurryAgent is called, so that staging
// takes long enough for something to happen in its middle. Unhindered it takes half a minute in an emulated machine.
func slowAgent(node string) func(ctx context.Context, run *Run) error {
	return func(ctx context.Context, run *Run) error {
		quota := "40%"
		if run.Lab.Accelerated() {
			quota = "10%"
		}

		_, err := run.command(ctx, node, "systemctl set-property --runtime "+agentUnit+" CPUQuota="+quota)

		return err
	}
}

func hurryAgent(ctx context.Context, run *Run, node string) error {
	_, err := run.command(ctx, node, "systemctl set-property --runtime "+agentUnit+" CPUQuota=")

	return err
}

// killAgent kills the agent as a crash would, and returns when systemd has started it anew.
func (r *Run) killAgent(ctx context.Context, node string) error {
	const pid = "systemctl show --value --property=MainPID " + agentUnit

	killed, err := r.command(ctx, node, pid+" && systemctl kill --kill-whom=main --signal=KILL "+agentUnit)
	if err != nil {
		return err
	}

	if killed == "" || killed == "0" {
		return fmt.Errorf("%w: the agent on %s does not run", errNothingToKill, node)
	}

	ctx, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()

	for {
		now, err := r.command(ctx, node, pid)
		if err == nil && now != "0" && now != killed {
			r.Log("%s: the agent was killed (PID %s) and started anew (PID %s)", node, killed, now)

			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%w on %s: %w", errNotRestarted, node, errors.Join(err, ctx.Err()))
		case <-time.After(observeInterval):
		}
	}
}

// holdReboots keeps the machine from being rebooted through logind, and allowReboots ends that: without the service the
// agent's call fails, and it asks again.
func (r *Run) holdReboots(ctx context.Context, node string) error {
	_, err := r.command(ctx, node, "systemctl mask --runtime "+logindUnit+" && systemctl stop "+logindUnit)

	return err
}

func (r *Run) allowReboots(ctx context.Context, node string) error {
	_, err := r.command(ctx, node, "systemctl unmask --runtime "+logindUnit+" && systemctl start "+logindUnit)

	return err
}

// killAgentBeforeReboot kills the agent after it has armed the slot and before the machine reboots, which holdReboots
// has kept up.
func (r *Run) killAgentBeforeReboot(ctx context.Context, node string) error {
	if err := r.killAgent(ctx, node); err != nil {
		return err
	}

	boot, err := r.command(ctx, node, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}

	if was := r.last.Nodes[node].Status.NodeInfo.BootID; boot != was {
		return fmt.Errorf("%w: %s has boot ID %s by now, was %s", errNotInBetween, node, boot, was)
	}

	return r.allowReboots(ctx, node)
}

// cutPower pulls the machine's plug and puts it in again.
func (r *Run) cutPower(ctx context.Context, node string) error {
	machine, err := r.Lab.Machine(node)
	if err != nil {
		return err
	}

	if err := machine.PowerCut(ctx); err != nil {
		return err
	}

	r.Log("%s: the power is cut at %d %% of the image", node, r.last.Progress(node))
	r.felled = append(r.felled, node)

	return machine.PowerOn(ctx)
}

// restartController kills the controller as a crash would, and starts it again.
func (r *Run) restartController(ctx context.Context) error {
	running, err := r.Lab.Controller()
	if err != nil {
		return fmt.Errorf("%w: the controller: %w", errNothingToKill, err)
	}

	if !running.Alive() {
		return fmt.Errorf("%w: the controller (PID %d) is dead", errNothingToKill, running.PID())
	}

	if err := running.Kill(ctx); err != nil {
		return err
	}

	again, err := r.Lab.StartController(ctx, r.Controller)
	if err != nil {
		return err
	}

	r.Log("the controller was killed (PID %d) and started anew (PID %d)", running.PID(), again.PID())

	return nil
}

// selectByHand sets the label that a person sets in the manual strategy.
func (r *Run) selectByHand(ctx context.Context, name string) error {
	node := r.last.Nodes[name].DeepCopy()
	before := node.DeepCopy()

	node.Labels[protocol.LabelSelected] = "by-hand"

	if err := r.Lab.Client.Patch(ctx, node, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("labelling %s: %w", name, err)
	}

	return nil
}

// staging tells whether the node is staging, and has come so far, in percent, and no farther.
func staging(node string, from, to int64) func(*World) bool {
	return func(world *World) bool {
		progress := world.Progress(node)

		return len(inPhase(only(world.Updates, node), v1alpha1.PhaseStaging)) > 0 && progress >= from && progress <= to
	}
}

// rebooting tells whether the node was told to reboot and has not gone.
func rebooting(node string) func(*World) bool {
	return func(world *World) bool {
		found := world.Nodes[node]
		if found == nil {
			return false
		}

		ready, _ := lab.Ready(found)

		return ready && len(inPhase(only(world.Updates, node), v1alpha1.PhaseRebooting)) > 0
	}
}

func only(updates map[string]*v1alpha1.NodeUpdate, node string) map[string]*v1alpha1.NodeUpdate {
	if update := updates[node]; update != nil {
		return map[string]*v1alpha1.NodeUpdate{node: update}
	}

	return nil
}

// waitsForSelection tells whether the pool says that it waits for a person, and the node is staged, and serves.
func waitsForSelection(node string) func(*World) bool {
	return func(world *World) bool {
		found := world.Nodes[node]

		return found != nil && !found.Spec.Unschedulable && found.Labels[protocol.LabelSelected] == "" &&
			world.Condition(v1alpha1.ConditionReady).Reason == v1alpha1.ReasonWaitingForSelect &&
			len(inPhase(only(world.Updates, node), v1alpha1.PhaseStaged)) > 0
	}
}

// blockedByBudget tells whether a node is cordoned, and both conditions that say where the pool is name the budget that
// keeps its drain from going on.
func blockedByBudget(budget string) func(*World) bool {
	return func(world *World) bool {
		cordoned := false
		for _, node := range world.Nodes {
			cordoned = cordoned || node.Spec.Unschedulable
		}

		for _, kind := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionProgressing} {
			condition := world.Condition(kind)
			if condition.Reason != v1alpha1.ReasonUpdating || !strings.Contains(condition.Message, "PodDisruptionBudget "+budget) {
				return false
			}
		}

		return cordoned
	}
}

// askedIn tells whether the node is asked to go in the dialect.
func askedIn(node string, dialect protocol.Dialect) func(*World) bool {
	return func(world *World) bool {
		found := world.Nodes[node]
		if found == nil {
			return false
		}

		view := protocol.Read(found)

		return view.Ready && view.Dialect == dialect
	}
}

// cordonedPods are the pods of the service that still run on cordoned nodes.
func (r *Run) cordonedPods(ctx context.Context) (int, error) {
	pods, err := r.pods(ctx)
	if err != nil {
		return 0, err
	}

	count := 0

	for index := range pods {
		node := r.last.Nodes[pods[index].Spec.NodeName]
		if node != nil && node.Spec.Unschedulable && served(&pods[index]) {
			count++
		}
	}

	return count, nil
}

func served(pod *corev1.Pod) bool {
	return pod.Labels[workloadLabel] == serviceName && pod.DeletionTimestamp == nil && podReady(pod)
}

// fetchedLittle proves by the registry's log that all machines together fetched less than a quarter of a content of the
// image, in parts only: their running slots have nearly all of it, and whoever was interrupted goes on where it was.
func (r *Run) fetchedLittle(role osimage.Role) error {
	requests, err := r.Lab.Registry.Requests(r.began)
	if err != nil {
		return err
	}

	content, found := r.image.Content(role)
	if !found {
		return fmt.Errorf("%w: the image has no content %s", ErrOutcome, role)
	}

	var bytes int64

	for _, request := range requests {
		if !request.Blob() || !strings.HasSuffix(request.Path, content.Digest) {
			continue
		}

		bytes += request.Bytes

		if request.Status != http.StatusPartialContent {
			return fmt.Errorf("%w: content %s was fetched from its start, want the parts that are new", ErrOutcome, role)
		}
	}

	r.Log("all machines fetched %d of the %d bytes of content %s", bytes, content.Size, role)

	if bytes == 0 || bytes > content.Size/4 {
		return fmt.Errorf("%w: %d of the %d bytes of content %s were fetched, want some and less than a quarter",
			ErrOutcome, bytes, content.Size, role)
	}

	return nil
}
