package statustable

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

var errFull = errors.New("full")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errFull }

func TestRowsSayWhereEachNodeIs(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "lab"}}
	base := func(name string) v1alpha1.NodeUpdate {
		update := v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
		update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "lab", Host: "h"}
		update.Spec.Attempt, update.Spec.Release.OS.Version = "a1", "1.1.0"
		update.Status.Attempt = "a1"

		return update
	}
	bmc := &v1alpha1.OutOfBandStatus{Attempt: "a1", Phase: v1alpha1.OutOfBandResetting, Reason: v1alpha1.OutOfBandPowerActionSent}

	for name, tt := range map[string]struct {
		change func(*v1alpha1.NodeUpdate)
		want   string
	}{
		"staging": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading
			u.Status.Running = v1alpha1.SlotStatus{Name: "a", Version: "1.0.0"}
			u.Status.Progress = &v1alpha1.Progress{BytesDone: 3 << 20, BytesTotal: 8 << 20}
		}, "n1 Staging a 1.0.0 1.1.0 3/8 MiB - Downloading"},
		"reading what is there": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason, u.Status.Message = v1alpha1.PhaseStaging, v1alpha1.ReasonReadingSlots, "goes on"
			u.Status.Progress = &v1alpha1.Progress{BytesTotal: 8 << 20, BytesRead: 4 << 20, BytesToRead: 10 << 20}
		}, "n1 Staging - - 1.1.0 reading what is there, 40% - ReadingSlots"},
		"writing": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason, u.Status.Message = v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading, "goes on"
			u.Status.Progress = &v1alpha1.Progress{
				BytesDone: 3 << 20, BytesTotal: 8 << 20, BytesRead: 10 << 20, BytesToRead: 10 << 20, BytesFetched: 1 << 19, BytesToFetch: 3 << 20,
				EstimatedEnd: &metav1.Time{Time: now.Add(80 * time.Second)},
			}
		}, "n1 Staging - - 1.1.0 3/8 MiB, 0.5/3.0 fetched, 1m20s left - Downloading"},
		"writing for longer than was thought": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseStaging, v1alpha1.ReasonDownloading
			u.Status.Progress = &v1alpha1.Progress{
				BytesDone: 3 << 20, BytesTotal: 8 << 20, EstimatedEnd: &metav1.Time{Time: now.Add(-time.Second)},
			}
		}, "n1 Staging - - 1.1.0 3/8 MiB - Downloading"},
		"a registry that is away in the middle": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason, u.Status.Message = v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable, "no such host"
			u.Status.Progress = &v1alpha1.Progress{
				BytesDone: 3 << 20, BytesTotal: 8 << 20, BytesFetched: 1 << 20, BytesToFetch: 3 << 20,
				EstimatedEnd: &metav1.Time{Time: now.Add(time.Minute)},
			}
		}, "n1 Staging - - 1.1.0 3/8 MiB, 1.0/3.0 fetched - RegistryUnavailable n1: no such host"},
		"silent past its deadline": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot
			u.Status.Deadline, u.Status.OutOfBand = &metav1.Time{Time: now.Add(-time.Minute)}, bmc
		}, "n1 Rebooting - - 1.1.0 - passed 1m0s ago WaitingForBoot (BMC: Resetting, PowerActionSent)"},
		"ended": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseRolledBack, v1alpha1.ReasonKernelOrInitrdFailed
			u.Status.Deadline, u.Status.OutOfBand = &metav1.Time{Time: now.Add(time.Minute)}, bmc
		}, "n1 RolledBack - - 1.1.0 - - KernelOrInitrdFailed"},
		"an attempt that the agent has not seen": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Spec.Attempt = v1alpha1.PhaseSucceeded, "a2"
		}, "n1 Idle - - 1.1.0 - - WaitingForAgent"},
		"an attempt that the agent cannot take up": {func(u *v1alpha1.NodeUpdate) {
			u.Status = v1alpha1.NodeUpdateStatus{
				Phase: v1alpha1.PhaseIdle, Reason: v1alpha1.ReasonSchemeUnsupported, ObservedGeneration: 2,
				Message: "neither /usr nor / is\non a dm-verity device",
			}
		}, "n1 Idle - - 1.1.0 - - SchemeUnsupported n1: neither /usr nor / is on a dm-verity device"},
		"one that it could not take up before": {func(u *v1alpha1.NodeUpdate) {
			u.Status = v1alpha1.NodeUpdateStatus{
				Phase: v1alpha1.PhaseIdle, Reason: v1alpha1.ReasonSchemeUnsupported, ObservedGeneration: 1, Message: "old news",
			}
		}, "n1 Idle - - 1.1.0 - - WaitingForAgent"},
		"one that it cannot take up, and other settings since": {func(u *v1alpha1.NodeUpdate) {
			u.Annotations = map[string]string{v1alpha1.AnnotationOfferedAt: "2026-11-29T11:00:00Z"}
			u.Status = v1alpha1.NodeUpdateStatus{
				Phase: v1alpha1.PhaseIdle, Reason: v1alpha1.ReasonSchemeUnsupported, ObservedGeneration: 1, Message: "no dm-verity",
				Heartbeat: &metav1.Time{Time: now.Add(-time.Minute)},
			}
		}, "n1 Idle - - 1.1.0 - - SchemeUnsupported n1: no dm-verity"},
		"a machine that is silent after all resets": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason, u.Status.Message = v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot, "good-bye"
			u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
				Attempt: "a1", Phase: v1alpha1.OutOfBandNeedsHuman, Reason: v1alpha1.OutOfBandResetsUsedUp, Message: "look at its\nconsole",
			}
		}, "n1 Rebooting - - 1.1.0 - - WaitingForBoot (BMC: NeedsHuman, ResetsUsedUp) n1: look at its console"},
		"a machine that was silent in an attempt before": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseRebooting, v1alpha1.ReasonWaitingForBoot
			u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
				Attempt: "a0", Phase: v1alpha1.OutOfBandNeedsHuman, Reason: v1alpha1.OutOfBandResetsUsedUp, Message: "old news",
			}
		}, "n1 Rebooting - - 1.1.0 - - WaitingForBoot"},
		"a machine that came back and fell back": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason, u.Status.Message = v1alpha1.PhaseRolledBack, v1alpha1.ReasonKernelOrInitrdFailed, "3 tries"
			u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{Attempt: "a1", Phase: v1alpha1.OutOfBandNeedsHuman, Message: "old news"}
		}, "n1 RolledBack - - 1.1.0 - - KernelOrInitrdFailed n1: 3 tries"},
		"a machine that shows life": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseProving, v1alpha1.ReasonWaitingForHealth
			u.Status.OutOfBand = &v1alpha1.OutOfBandStatus{
				Attempt: "a1", Phase: v1alpha1.OutOfBandRecovered, Reason: v1alpha1.OutOfBandMachineBack, Message: "it is back",
			}
		}, "n1 Proving - - 1.1.0 - - WaitingForHealth (BMC: Recovered, MachineBack)"},
		"an agent that was asked for nothing yet": {func(u *v1alpha1.NodeUpdate) {
			u.Status = v1alpha1.NodeUpdateStatus{
				Phase: v1alpha1.PhaseIdle, Reason: v1alpha1.ReasonNoAttempt, ObservedGeneration: 2, Message: "no attempt is asked for",
			}
		}, "n1 Idle - - 1.1.0 - - WaitingForAgent"},
		"refused": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseRefused, v1alpha1.ReasonBootPartitionFull
			u.Status.Message = "/efi has 3 MiB left of 64; remove files"
		}, "n1 Refused - - 1.1.0 - - BootPartitionFull n1: /efi has 3 MiB left of 64; remove files"},
		"refused in an attempt that is over": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseRefused, v1alpha1.ReasonBootPartitionFull
			u.Status.Message, u.Spec.Attempt = "old news", "a2"
		}, "n1 Idle - - 1.1.0 - - WaitingForAgent"},
		"fetching in vain": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseStaging, v1alpha1.ReasonRegistryUnavailable
			u.Status.Message = "no such host"
		}, "n1 Staging - - 1.1.0 - - RegistryUnavailable n1: no such host"},
		"up to date": {func(u *v1alpha1.NodeUpdate) {
			u.Status.Phase, u.Status.Reason = v1alpha1.PhaseSucceeded, v1alpha1.ReasonUpToDate
			u.Status.Message = "runs it already"
		}, "n1 Succeeded - - 1.1.0 - - UpToDate"},
		"another pool's": {func(u *v1alpha1.NodeUpdate) { u.Spec.Door.Name = "other" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			update := base("n1")
			tt.change(&update)

			var out strings.Builder
			if err := Write(&out, pool, []v1alpha1.NodeUpdate{update}, now); err != nil {
				t.Fatal(err)
			}

			_, rows, _ := strings.Cut(out.String(), "REASON\n")
			if got := strings.Join(strings.Fields(rows), " "); got != tt.want {
				t.Errorf("row %q, want %q", got, tt.want)
			}
		})
	}
}

func TestNodesWithoutARowAreCounted(t *testing.T) {
	t.Parallel()

	pool := &v1alpha1.HostPool{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "lab"}}
	update := v1alpha1.NodeUpdate{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	update.Spec.Door = v1alpha1.Door{Kind: v1alpha1.DoorHostPool, Namespace: "metal", Name: "lab", Host: "h"}
	update.Spec.Attempt = "a1"

	for nodes, want := range map[int32]string{
		0: "", 1: "", 3: "  2 more of the pool's nodes have not been offered the release\n",
	} {
		pool.Status.Nodes = nodes

		var out strings.Builder
		if err := Write(&out, pool, []v1alpha1.NodeUpdate{update}, time.Time{}); err != nil {
			t.Fatal(err)
		}

		if _, below, _ := strings.Cut(out.String(), "WaitingForAgent\n"); below != want {
			t.Errorf("of %d nodes: got %q below the table, want %q", nodes, below, want)
		}
	}
}

func TestAnOutputThatFailsIsSaid(t *testing.T) {
	t.Parallel()

	if err := Write(fullDisk{}, &v1alpha1.HostPool{}, nil, time.Time{}); !errors.Is(err, errFull) {
		t.Errorf("got %v, want the writer's error", err)
	}
}
