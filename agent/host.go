package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/kubeconfig"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// Host is the Machine that this runs on.
type Host struct {
	stateDir string
	// kubeconfig is the path of the agent's credentials.
	kubeconfig string
	files      BootFiles
	system     boot.System
	variables  boot.Variables
	manager    boot.Manager
	rebooter   boot.Rebooter
	excerpts   boot.Excerpts
}

var _ Machine = (*Host)(nil)

// BootFiles is what the ladder asks the boot partition; a slot scheme that keeps boot entries there is one.
type BootFiles interface {
	// StagedCommandLine is the kernel command line of the image that is staged or armed, "" when there is none.
	StagedCommandLine(ctx context.Context) (boot.CommandLine, error)
	// CheckBootPartition tells why the boot partition cannot be written, nil when it can.
	CheckBootPartition(ctx context.Context) error
}

// NewHost makes the Machine of this node, whose agent has its credentials in the file kubeconfig. It touches nothing.
func NewHost(stateDir, kubeconfigFile string, files BootFiles) *Host {
	return &Host{
		stateDir: stateDir, kubeconfig: kubeconfigFile, files: files,
		variables: boot.NewVariables(""), manager: boot.Systemd{}, rebooter: boot.Logind{},
	}
}

// BootID implements Machine.
func (h *Host) BootID() (string, error) { return h.system.BootID() }

// Trial implements Machine. A file that cannot be decoded counts as none: the attempt is found in other places.
func (h *Host) Trial() (*health.Trial, error) {
	trial, err := health.ReadTrial(h.stateDir)

	return readOrNone(&trial, err)
}

// Gate implements Machine.
func (h *Host) Gate() (*health.Record, error) {
	record, err := health.ReadRecord(h.stateDir)

	return readOrNone(&record, err)
}

func readOrNone[T any](value *T, err error) (*T, error) {
	switch {
	case err == nil:
		return value, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // "none" is an answer.
	default:
		return nil, err
	}
}

// SaveTrial implements Machine.
func (h *Host) SaveTrial(trial health.Trial) error {
	record, err := h.Gate()
	if err != nil || (record != nil && record.Attempt != trial.Attempt) {
		if err := os.Remove(filepath.Join(h.stateDir, health.RecordFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("removing the boot gate's record of an earlier attempt: %w", err)
		}
	}

	return health.SaveTrial(h.stateDir, trial)
}

// RemoveTrial implements Machine.
func (h *Host) RemoveTrial() error { return health.RemoveTrial(h.stateDir) }

// CheckIdentity implements Machine.
func (h *Host) CheckIdentity(now, then time.Time) error {
	return kubeconfig.Check(h.kubeconfig, now, then)
}

// EnsureWatchdog implements Machine.
func (h *Host) EnsureWatchdog(ctx context.Context) error {
	return boot.EnsureWatchdog(ctx, h.system, h.manager)
}

// Rungs implements Machine.
func (h *Host) Rungs(ctx context.Context) []v1alpha1.RungStatus {
	in := boot.LadderInput{System: h.system, Variables: h.variables, Manager: h.manager}

	if in.BootPartition = h.files.CheckBootPartition(ctx); in.BootPartition == nil {
		in.StagedCommandLine, in.StagedUnread = h.files.StagedCommandLine(ctx)
	}

	return boot.Ladder(ctx, in)
}

// Excerpt implements Machine.
func (h *Host) Excerpt(ctx context.Context, since string) string {
	return h.excerpts.PreviousBoot(ctx, since)
}

// Reboot implements Machine.
func (h *Host) Reboot(ctx context.Context) error { return h.rebooter.Reboot(ctx) }

// Summary is what a node knows without the API server.
type Summary struct {
	Scheme  string                `json:"scheme"`
	BootID  string                `json:"bootID"`
	Slots   *slots.State          `json:"slots,omitempty"`
	Journal *journal.State        `json:"journal,omitempty"`
	Trial   *health.Trial         `json:"trial,omitempty"`
	Gate    *health.Record        `json:"gate,omitempty"`
	Rungs   []v1alpha1.RungStatus `json:"rungs"`
	// Problems are the parts that could not be read, and why.
	Problems []string `json:"problems,omitempty"`
}

// Summarise reads the machine and the journal. What cannot be read is named in Problems.
func Summarise(ctx context.Context, machine Machine, scheme slots.Scheme, store *journal.File) Summary {
	summary := Summary{Scheme: scheme.Name(), Rungs: machine.Rungs(ctx)}
	problem := func(err error) bool {
		if err != nil {
			summary.Problems = append(summary.Problems, err.Error())
		}

		return err == nil
	}

	var err error

	summary.BootID, err = machine.BootID()
	problem(err)

	if state, err := scheme.Observe(ctx); problem(err) {
		summary.Slots = &state
	}

	if state, err := store.Peek(); problem(err) {
		summary.Journal = state
	}

	summary.Trial, err = machine.Trial()
	problem(err)

	summary.Gate, err = machine.Gate()
	problem(err)

	return summary
}
