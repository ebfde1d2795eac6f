package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/disk"
	"github.com/stayput-dev/stayput/test/lab"
	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/osbuild"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	// memoryID is the lab's, which is brought up and taken away.
	memoryID   = "memory"
	memoryNode = "node-1"
	memoryMiB  = 2048
	// memoryGoal is what the agent may have in memory while it stages, in KiB.
	memoryGoal = 64 << 10
	// slotShare is how much larger the slots are than what goes in, as one part in so many: erofs has structures of its own.
	slotShare = 8
	// memoryPoll is how often the agent is looked at: each SSH session costs an emulated machine a second.
	memoryPoll = 10 * time.Second
	// memoryWait bounds one staging: an emulated machine writes some 7 MB/s.
	memoryWait = 40 * time.Minute
	// memoryRest is how long the agent is looked at when it has nothing to do.
	memoryRest = 90 * time.Second
	// memoryRestart is after how many seconds an agent that ended runs again, with some to spare (its unit's RestartSec).
	memoryRestart = 10
)

var errMemory = errors.New("the agent had more memory than its goal")

// memoryFlags are those of `lab memory`.
type memoryFlags struct {
	agent, controller string
	mib               int64
}

func newMemoryCommand() *cobra.Command {
	var asked memoryFlags

	cmd := &cobra.Command{
		Use:   "memory",
		Short: "Measure the agent's memory while it stages large images, in a lab of its own",
		Long: `Measure the agent's memory while it stages large images, in a lab of its own, which is taken away again.

One machine with slots that are large enough stages two versions whose /usr is filled up with files of this machine: the
first one into an empty slot, so that nearly all of it is fetched; the second onto the first, of which it has three
files in four. Neither is booted. /proc/PID/status is read every ten seconds and the peak set back, so that there
is one for each part. Fails when a peak is above 64 MiB.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runMemory(cmd.Context(), cmd.OutOrStdout(), asked) },
	}
	cmd.Flags().StringVar(&asked.agent, "agent", "bin/stayput-agent", "program of the node agent")
	cmd.Flags().StringVar(&asked.controller, "controller", "bin/stayput-controller", "program of the controller")
	cmd.Flags().Int64Var(&asked.mib, "mib", memoryMiB, "size of /usr")

	return cmd
}

func runMemory(ctx context.Context, out io.Writer, asked memoryFlags) (err error) {
	report := reporter(out)
	shared := flags{id: memoryID}

	dir, err := shared.dir()
	if err != nil {
		return err
	}

	if err := tools.EnsurePackages(ctx, tools.PackageList(packages), report); err != nil {
		return err
	}

	controller, err := filepath.Abs(asked.controller)
	if err != nil {
		return fmt.Errorf("looking for the controller: %w", err)
	}

	running, err := lab.Start(ctx, lab.Options{ID: shared.id, Dir: dir, Agent: asked.agent, Report: report})
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, lab.Down(context.WithoutCancel(ctx), dir, shared.id)) }()

	measured := &memory{Lab: running, report: report}

	references, err := measured.prepare(ctx, asked.mib, filepath.Join(dir, "memory.img"))
	if err != nil {
		return err
	}

	if _, err := running.StartController(ctx, controller); err != nil {
		return err
	}

	return measured.measure(ctx, references, out)
}

// memory measures the agent of one machine.
type memory struct {
	*lab.Lab

	report tools.Report
	// ssh runs a command on the machine.
	ssh  func(ctx context.Context, command string) (string, error)
	rows []*memoryRow
}

// memoryRow is one part of what the agent does.
type memoryRow struct {
	name        string
	began, last time.Time
	// peak is the largest VmHWM, resident the largest VmRSS and own the RssAnon of that moment, all in KiB.
	peak, resident, own int64
	downloaded          int64
}

// prepare pushes the two versions, and starts the machine, whose disk has room for them.
func (m *memory) prepare(ctx context.Context, mib int64, diskFile string) ([]string, error) {
	references := make([]string, 0, 2) //nolint:mnd // the two versions

	// Before the machine starts: it shares the processors with what builds.
	for _, version := range []string{"1.1.0", "1.2.0"} {
		image, err := m.BuildImage(ctx, osbuild.Variant{Version: version, FillMiB: mib})
		if err != nil {
			return nil, err
		}

		reference, _, err := m.PushImage(ctx, image)
		if err != nil {
			return nil, err
		}

		references = append(references, reference)
	}

	first, err := m.BuildImage(ctx, osbuild.Variant{Version: firstVersion})
	if err != nil {
		return nil, err
	}

	source, err := osimage.OpenLayout(ctx, first.Layout, first.Tag)
	if err != nil {
		return nil, fmt.Errorf("opening OS %s: %w", first.Variant, err)
	}

	slot := mib << 20
	slot += slot / slotShare
	// A hash tree has less than one part in a hundred.
	sizes := disk.Sizes{Slot: slot, Verity: slot / 100 >> 20 << 20} //nolint:mnd // see above

	if _, err := disk.Create(ctx, source, diskFile, disk.Options{Sizes: sizes}); err != nil {
		return nil, fmt.Errorf("making the disk: %w", err)
	}

	if err := startMachines(ctx, m.Lab, diskFile, 1, m.report); err != nil {
		return nil, err
	}

	node, err := m.Machine(memoryNode)
	if err != nil {
		return nil, err
	}

	m.ssh = node.SSH

	return references, nil
}

// measure prints what there is after an error, too: it may come after an hour.
func (m *memory) measure(ctx context.Context, references []string, out io.Writer) error {
	return errors.Join(m.run(ctx, references), m.print(out))
}

func (m *memory) run(ctx context.Context, references []string) error {
	if err := m.rest(ctx, "idle"); err != nil {
		return err
	}

	for number, reference := range references {
		if err := m.stage(ctx, number+1, reference); err != nil {
			return fmt.Errorf("staging %s: %w", reference, err)
		}

		if err := m.rest(ctx, fmt.Sprintf("version %d: staged, waiting", number+1)); err != nil {
			return err
		}
	}

	return nil
}

// rest looks at the agent for a while.
func (m *memory) rest(ctx context.Context, name string) error {
	began := time.Now()

	return m.poll(ctx, func(ctx context.Context) (bool, error) {
		return time.Since(began) > memoryRest, m.sample(ctx, name, 0)
	})
}

// stage asks for a version and looks at the agent until it is staged.
func (m *memory) stage(ctx context.Context, number int, reference string) error {
	before, err := m.update(ctx)
	if err != nil {
		return err
	}

	if err := m.ask(ctx, reference); err != nil {
		return err
	}

	return m.poll(ctx, func(ctx context.Context) (bool, error) {
		update, err := m.update(ctx)
		if err != nil || update.Status.Attempt == before.Status.Attempt || update.Status.Attempt != update.Spec.Attempt {
			return false, err
		}

		downloaded := update.Status.Counters.BytesDownloaded - before.Status.Counters.BytesDownloaded
		name := fmt.Sprintf("version %d: looking at what is there", number)

		switch status := update.Status; {
		case status.Phase == v1alpha1.PhaseStaged:
			return true, m.sample(ctx, fmt.Sprintf("version %d: writing, to its end", number), downloaded)
		case status.Phase != v1alpha1.PhaseStaging && status.Phase != v1alpha1.PhaseIdle:
			return false, fmt.Errorf("%w: %s (%s)", errNotUpdated, status.Phase, status.Message)
		case status.Progress != nil && status.Progress.BytesDone > 0:
			name = fmt.Sprintf("version %d: writing", number)
		}

		return false, m.sample(ctx, name, downloaded)
	})
}

func (m *memory) poll(ctx context.Context, done wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, memoryPoll, memoryWait, true, done) //nolint:wrapcheck // the caller names it
}

// ask makes the pool, which waits for a person before it drains.
func (m *memory) ask(ctx context.Context, reference string) error {
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: lab.Namespace, Name: memoryID}}

	_, err := controllerutil.CreateOrUpdate(ctx, m.ManagementClient, pool, func() error {
		pool.Spec.HostSelector = metav1.LabelSelector{MatchLabels: map[string]string{lab.NodeLabel: memoryNode}}
		pool.Spec.Release.OS = v1alpha1.ImageSource{Image: reference, PullSecretName: lab.PullSecret}
		pool.Spec.Strategy.Type = v1alpha1.ManualInPlaceUpdate

		return nil
	})
	if err != nil {
		return fmt.Errorf("asking for it: %w", err)
	}

	return nil
}

func (m *memory) update(ctx context.Context) (*v1alpha1.NodeUpdate, error) {
	var update v1alpha1.NodeUpdate

	err := m.Client.Get(ctx, client.ObjectKey{Name: memoryNode}, &update)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading NodeUpdate %s: %w", memoryNode, err)
	}

	return &update, nil
}

// sample reads how much memory the agent has and had since the last time, and sets its peak back (proc(5), clear_refs).
func (m *memory) sample(ctx context.Context, name string, downloaded int64) error {
	const look = "read pid </sys/fs/cgroup/system.slice/stayput-agent.service/cgroup.procs && " +
		"cat /proc/$pid/status && echo 5 >/proc/$pid/clear_refs"

	status, err := m.ssh(ctx, look)
	if errors.Is(err, machine.ErrRemote) {
		// The agent may have restarted before its status was read: its next process has another number.
		m.report("looking at the agent once more: %v", err)

		status, err = m.ssh(ctx, "sleep "+strconv.Itoa(memoryRestart)+"; "+look)
	}

	if err != nil {
		return fmt.Errorf("looking at the agent: %w", err)
	}

	values, err := kibibytes(status, "VmHWM", "VmRSS", "RssAnon")
	if err != nil {
		return err
	}

	row := m.row(name)
	row.last = time.Now()
	row.peak = max(row.peak, values[0])
	row.downloaded = max(row.downloaded, downloaded)

	if values[1] > row.resident {
		row.resident, row.own = values[1], values[2]
	}

	m.report("%s: VmHWM %d kB, VmRSS %d kB, RssAnon %d kB, downloaded %d bytes", name, values[0], values[1], values[2], downloaded)

	return nil
}

func (m *memory) row(name string) *memoryRow {
	if count := len(m.rows); count == 0 || m.rows[count-1].name != name {
		m.rows = append(m.rows, &memoryRow{name: name, began: time.Now()})
	}

	return m.rows[len(m.rows)-1]
}

var errStatus = errors.New("no such line in /proc/PID/status")

// kibibytes are values of /proc/PID/status.
func kibibytes(status string, names ...string) ([]int64, error) {
	values := make([]int64, len(names))

	for index, name := range names {
		_, rest, found := strings.Cut(status, name+":")
		if !found {
			return nil, fmt.Errorf("%w: %s", errStatus, name)
		}

		line, _, _ := strings.Cut(rest, "\n")

		value, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("reading %s of /proc/PID/status: %w", name, err)
		}

		values[index] = value
	}

	return values, nil
}

// print prints the table, and fails when a peak is above the goal.
func (m *memory) print(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) //nolint:mnd // two blanks between columns
	fmt.Fprint(table, "PART\tSECONDS\tVmHWM\tVmRSS AT MOST\tOF IT RssAnon\tDOWNLOADED\n")

	var peak int64

	for _, row := range m.rows {
		peak = max(peak, row.peak)

		fmt.Fprintf(table, "%s\t%.0f\t%d kB\t%d kB\t%d kB\t%.1f MB\n", row.name, row.last.Sub(row.began).Seconds(),
			row.peak, row.resident, row.own, float64(row.downloaded)/1e6) //nolint:mnd // bytes in a MB
	}

	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}

	if peak > memoryGoal {
		return fmt.Errorf("%w: %d kB, not %d", errMemory, peak, memoryGoal)
	}

	return nil
}
