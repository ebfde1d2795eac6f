package e2e

import (
	"context"
	"errors"
	"fmt"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/osimage"
)

// heldUpDrain is a drain that a budget holds up, until a person takes the budget away, and in the middle of which the
// controller dies.
func heldUpDrain() Incident {
	blocked := blockedByBudget(workloadNamespace + "/" + serviceName)

	return Incident{
		Name:   "a budget forbids the drain, and the controller is killed in the middle of it",
		Before: forbidEvictions,
		Steps: []Step{
			{
				Name: "kill the controller mid-drain and start it again",
				When: blocked,
				Do: func(ctx context.Context, run *Run) error {
					if pods, err := run.cordonedPods(ctx); err != nil || pods == 0 {
						return errors.Join(fmt.Errorf("%w: the pod that the budget protects is gone", ErrOutcome), err)
					}

					return run.restartController(ctx)
				},
			},
			{Name: "release the budget", When: blocked, Do: allowEvictions},
		},
		After: allowEvictions,
	}
}

// powerCut is a machine whose plug is pulled in the middle of staging.
func powerCut(node string) Incident {
	// The agent tells of each fifth when it can. By the time that the first is seen more is written.
	const cutFrom, cutTo = 20, 90

	return Incident{
		Name:   "power cut in the middle of staging",
		Before: slowAgent(node),
		Steps: []Step{{
			Name: "cut the power of " + node + " and give it back",
			When: staging(node, cutFrom, cutTo),
			Do:   func(ctx context.Context, run *Run) error { return run.cutPower(ctx, node) },
		}},
		Check: func(run *Run, _ *World) error { return run.fetchedLittle(osimage.RoleUSR) },
	}
}

// agentKilled is an agent that dies twice: while it is staging, and when it has armed the slot and the machine does not
// reboot yet.
func agentKilled(node string) Incident {
	const killFrom, killTo = 20, 90

	return Incident{
		Name:   "agent killed while staging, and between arm and reboot",
		Before: slowAgent(node),
		Steps: []Step{
			{
				Name: "kill the agent of " + node + " while it is staging, and hold reboots up",
				When: staging(node, killFrom, killTo),
				Do: func(ctx context.Context, run *Run) error {
					return errors.Join(run.killAgent(ctx, node), hurryAgent(ctx, run, node), run.holdReboots(ctx, node))
				},
			},
			{
				Name: "kill the agent between arm and reboot, then let the machine reboot",
				When: rebooting(node),
				Do:   func(ctx context.Context, run *Run) error { return run.killAgentBeforeReboot(ctx, node) },
			},
		},
		After: func(ctx context.Context, run *Run) error {
			return errors.Join(run.allowReboots(ctx, node), hurryAgent(ctx, run, node))
		},
	}
}

// selectedByHand is a person who sets the label, in the manual strategy.
func selectedByHand(node string) Incident {
	return Incident{
		Name: "the node is selected by hand",
		Steps: []Step{{
			Name: "select " + node + " by hand",
			When: waitsForSelection(node),
			Do:   func(ctx context.Context, run *Run) error { return run.selectByHand(ctx, node) },
		}},
	}
}

// asked is a node that is asked to go in a dialect. The end of every scenario is checked for its answer.
func asked(node string, dialect protocol.Dialect) Incident {
	return Incident{
		Name:  "the node is asked in dialect " + string(dialect),
		Steps: []Step{{Name: node + " is asked to go in dialect " + string(dialect), When: askedIn(node, dialect)}},
	}
}
