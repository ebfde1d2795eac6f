package agenttest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/journal"
	agentslots "github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// Behaviour is what an image does when it is booted.
type Behaviour string

// The behaviours.
const (
	// Healthy passes the boot gate and is committed.
	Healthy Behaviour = "healthy"
	// Panics reboots before the boot gate starts.
	Panics Behaviour = "panics"
	// Hangs stays silent before the boot gate starts, until it is reset.
	Hangs Behaviour = "hangs"
	// Sick fails the boot gate.
	Sick Behaviour = "sick"
	// DiesInGate goes down while the boot gate runs.
	DiesInGate Behaviour = "dies-in-gate"
	// GateStuck starts the boot gate, which neither passes nor fails.
	GateStuck Behaviour = "gate-stuck"
	// NeverBlessed passes the boot gate, but the counter stays.
	NeverBlessed Behaviour = "never-blessed"
)

// Fault is what happens at a step.
type Fault string

// The faults.
const (
	// Kill ends the agent's process; it starts anew.
	Kill Fault = "kill"
	// PowerCut takes the machine down at once; it starts anew.
	PowerCut Fault = "power-cut"
	// KillAndLose is Kill, and the journal is gone; PowerCutAndLose likewise.
	KillAndLose     Fault = "kill-and-lose-journal"
	PowerCutAndLose Fault = "power-cut-and-lose-journal"
)

var errIdentityEnds = errors.New("the certificate ends")

// interrupt is thrown through the agent where a fault strikes.
type interrupt struct{ fault Fault }

// disk is one slot.
type disk struct {
	// version and rootHash are what the slot is named after: by arming, not by staging.
	version, rootHash string
	// writing is the version that is being written, staged the root hash of the image that is whole and not armed.
	writing, staged string
	// bytes of the image that are written so far.
	bytes int64
	// entry is "" when nothing boots the slot.
	entry      string
	left, done int
	// counted tells that the entry has a counter.
	counted bool
}

func (d *disk) assessment() agentslots.Assessment {
	switch {
	case d.entry == "":
		return agentslots.NoEntry
	case !d.counted:
		return agentslots.Good
	case d.left > 0:
		return agentslots.Trial
	default:
		return agentslots.Bad
	}
}

func (d *disk) count(left, done int) {
	d.left, d.done, d.counted = left, done, true
	d.entry = "os_" + d.version + "+" + strconv.Itoa(left)

	if done > 0 {
		d.entry += "-" + strconv.Itoa(done)
	}

	d.entry += ".efi"
}

func (d *disk) slot(name string) agentslots.Slot {
	return agentslots.Slot{
		Name: name, Version: d.version, RootHash: d.rootHash, Staged: d.staged, Entry: d.entry, Boot: d.assessment(),
	}
}

// holds is the root hash of the whole image in the slot, armed or not.
func (d *disk) holds() string { return d.rootHash + d.staged }

// Machine is a node.
type Machine struct {
	Clock *clocktesting.FakeClock
	// Behaviours are by version; one that is not named is Healthy.
	Behaviours map[string]Behaviour
	// Faults are by the number of the call of point.
	Faults map[int]Fault
	// IgnoreArmed is how often the boot loader starts the old slot although the new one comes first.
	IgnoreArmed int
	// StuckShutdowns is how often a reboot that was asked for does not happen.
	StuckShutdowns int
	// ArmErrors and StageErrors are given out first, one a call.
	ArmErrors, StageErrors []error
	// IdentityEnds is when the agent's credentials end, zero for never.
	IdentityEnds time.Time
	// Broken are the rules that were broken.
	Broken []string
	// Points are the names of the steps so far.
	Points []string

	slots         [2]disk
	running       int
	runningTrial  bool
	boots         int
	down, pending bool
	gateTicks     int

	journal []byte
	trial   *health.Trial
	gate    *health.Record

	// written and downloaded count bytes; asked is when a reboot was asked for in this boot by this process.
	written, downloaded int64
	askedHere           bool
	askedAt             int64
	// BootsOf counts the boots of each version; Asks all reboots that were asked for.
	BootsOf map[string]int
	Asks    int
	// Lost counts how often the journal was lost.
	Lost int
}

// NewMachine runs a version from slot a, committed.
func NewMachine(clock *clocktesting.FakeClock, version string) *Machine {
	machine := &Machine{
		Clock: clock, Behaviours: map[string]Behaviour{}, Faults: map[int]Fault{}, BootsOf: map[string]int{},
	}
	machine.slots[0] = disk{version: version, rootHash: RootHash(version), entry: "os_" + version + ".efi"}
	machine.boots = 1

	return machine
}

// RootHash is the root hash of a version's image.
func RootHash(version string) string {
	return fmt.Sprintf("%064x", []byte(version))
}

// Config is the config of a version's image.
func Config(version string) osimage.Config {
	return osimage.Config{
		Name: "os", Version: version, Architecture: "amd64", Scheme: "fake", RootHash: RootHash(version),
		Contents: []osimage.Content{{Role: osimage.RoleUSR, RawSize: imageSize}},
	}
}

// imageSize is in bytes, chunk is what is written between two steps.
const (
	imageSize = 1000
	chunk     = 250
)

// point is a step at which a fault may strike.
func (m *Machine) point(name string) {
	number := len(m.Points)
	m.Points = append(m.Points, name)

	if fault, found := m.Faults[number]; found {
		panic(interrupt{fault})
	}
}

func (m *Machine) brokef(format string, args ...any) {
	m.Broken = append(m.Broken, fmt.Sprintf(format, args...))
}

// Strike does to the machine what the fault means.
func (m *Machine) Strike(fault Fault) {
	m.askedHere = false

	if fault == KillAndLose || fault == PowerCutAndLose {
		m.journal = nil
		m.Lost++
	}

	if fault == PowerCut || fault == PowerCutAndLose {
		m.Boot()
	}
}

// Boot starts the machine as the firmware and systemd-boot do: entries without tries last, then the newest version.
func (m *Machine) Boot() {
	m.pending, m.down, m.askedHere, m.gateTicks = false, false, false, 0

	chosen := m.choose()
	if m.IgnoreArmed > 0 && m.slots[chosen].counted {
		m.IgnoreArmed--
		chosen = 1 - chosen
	}

	m.boots++
	m.running = chosen
	slot := &m.slots[chosen]
	m.BootsOf[slot.version]++

	m.runningTrial = slot.counted
	if slot.counted && slot.left > 0 {
		slot.count(slot.left-1, slot.done+1)
	}

	if !m.runningTrial {
		return
	}

	switch m.behaviour() {
	case Panics:
		m.Boot()
	case Hangs:
		m.down = true
	default:
	}
}

// BootOther starts the other slot than the one that runs, as a person may do at the boot loader's menu.
func (m *Machine) BootOther() {
	m.boots++
	m.running = 1 - m.running
	m.runningTrial = m.slots[m.running].counted
}

func (m *Machine) choose() int {
	order := []int{0, 1}
	slices.SortStableFunc(order, func(a, b int) int {
		left, right := &m.slots[a], &m.slots[b]

		return cmp.Or(
			cmp.Compare(rank(left), rank(right)),
			-cmp.Compare(left.version, right.version), // newest first
		)
	})

	return order[0]
}

// rank sorts what boots before what has no tries left, and that before what has no entry.
func rank(slot *disk) int {
	switch slot.assessment() {
	case agentslots.NoEntry:
		return 2
	case agentslots.Bad:
		return 1
	default:
		return 0
	}
}

func (m *Machine) behaviour() Behaviour {
	if behaviour, found := m.Behaviours[m.slots[m.running].version]; found {
		return behaviour
	}

	return Healthy
}

// Down tells whether the machine is silent.
func (m *Machine) Down() bool { return m.down }

// RebootPending tells whether a reboot was asked for and has not happened.
func (m *Machine) RebootPending() bool { return m.pending }

// Tick lets the boot gate and systemd-bless-boot go one step on.
func (m *Machine) Tick() {
	if !m.runningTrial || m.down || m.pending {
		return
	}

	m.gateTicks++
	slot := &m.slots[m.running]
	behaviour := m.behaviour()

	if m.gateTicks == 1 || m.gate == nil || m.gate.BootID != m.bootID() {
		m.gate = &health.Record{
			BootID: m.bootID(), Verdict: health.VerdictRunning, StartedAt: m.Clock.Now(),
			Gates: []health.GateRecord{{Name: health.GateKubelet, Verdict: health.VerdictRunning}},
		}
		if m.trial != nil {
			m.gate.Attempt, m.gate.Version = m.trial.Attempt, m.trial.Version
		}

		return
	}

	switch {
	case behaviour == GateStuck:
	case behaviour == DiesInGate:
		m.Boot()
	case behaviour == Sick:
		m.gate.Verdict, m.gate.Message = health.VerdictFailed, "gate kubelet did not pass within 5m0s: refused"
		slot.count(0, slot.done)
		m.pending = true
	case m.gate.Verdict == health.VerdictRunning:
		m.gate.Verdict = health.VerdictPassed
	case behaviour != NeverBlessed:
		slot.counted, slot.entry = false, "os_"+slot.version+".efi"
		m.runningTrial = false
	}
}

func (m *Machine) bootID() string { return "boot-" + strconv.Itoa(m.boots) }

// Running is the version that runs; Committed tells whether it is.
func (m *Machine) Running() (version string, committed bool) {
	slot := &m.slots[m.running]

	return slot.version, slot.assessment() == agentslots.Good && !m.runningTrial
}

// SpareBoots tells whether anything would boot the spare slot.
func (m *Machine) SpareBoots() bool {
	return m.slots[1-m.running].entry != "" && m.slots[1-m.running].assessment() != agentslots.Good
}

// BootID implements agent.Machine.
func (m *Machine) BootID() (string, error) { return m.bootID(), nil }

// Trial implements agent.Machine.
func (m *Machine) Trial() (*health.Trial, error) { return m.trial, nil }

// Gate implements agent.Machine.
func (m *Machine) Gate() (*health.Record, error) { return m.gate, nil }

// SaveTrial implements agent.Machine.
func (m *Machine) SaveTrial(trial health.Trial) error {
	m.point("save-trial")

	if m.gate != nil && m.gate.Attempt != trial.Attempt {
		m.gate = nil
	}

	m.trial = &trial
	m.point("trial-saved")

	return nil
}

// RemoveTrial implements agent.Machine.
func (m *Machine) RemoveTrial() error {
	m.point("remove-trial")
	m.trial = nil
	m.point("trial-removed")

	return nil
}

// CheckIdentity implements agent.Machine.
func (m *Machine) CheckIdentity(_, then time.Time) error {
	if ends := m.IdentityEnds; !ends.IsZero() && then.After(ends) {
		return fmt.Errorf("%w at %s", errIdentityEnds, ends.Format(time.RFC3339))
	}

	return nil
}

// EnsureWatchdog implements agent.Machine.
func (m *Machine) EnsureWatchdog(context.Context) error { return nil }

// Rungs implements agent.Machine.
func (m *Machine) Rungs(context.Context) []v1alpha1.RungStatus {
	return []v1alpha1.RungStatus{{Rung: v1alpha1.RungBootTries, State: v1alpha1.RungReady}}
}

// Excerpt implements agent.Machine.
func (m *Machine) Excerpt(context.Context, string) string { return "kernel: last words" }

// Reboot implements agent.Machine.
func (m *Machine) Reboot(context.Context) error {
	m.point("reboot")

	now := m.Clock.Now().Unix()

	const patience = 299 // seconds; the agent asks again after five minutes

	if m.askedHere && now-m.askedAt < patience {
		m.brokef("asked for a reboot twice within %d s", now-m.askedAt)
	}

	if spare := &m.slots[1-m.running]; !m.runningTrial && spare.assessment() != agentslots.Trial {
		m.brokef("rebooted with nothing armed: the spare slot is %s", spare.assessment())
	}

	m.Asks++
	m.askedHere, m.askedAt = true, now

	if m.StuckShutdowns > 0 {
		m.StuckShutdowns--
	} else {
		m.pending = true
	}

	m.point("rebooted")

	return nil
}

// Load implements agent.Store.
func (m *Machine) Load() (journal.State, bool, error) {
	var state journal.State

	if m.journal == nil {
		return state, true, nil
	}

	err := json.Unmarshal(m.journal, &state)

	return state, false, err
}

// Save implements agent.Store.
func (m *Machine) Save(state journal.State) error {
	m.point("save-journal")

	data, err := json.Marshal(state)
	if err != nil {
		return err
	}

	m.journal = data
	m.point("journal-saved")

	return nil
}
