package agenttest

import (
	"context"
	"errors"
	"strings"

	agentslots "github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// Name implements slots.Scheme.
func (m *Machine) Name() string { return "fake" }

// Observe implements slots.Scheme.
func (m *Machine) Observe(context.Context) (agentslots.State, error) {
	names := []string{"a", "b"}

	return agentslots.State{
		Running:   m.slots[m.running].slot(names[m.running]),
		Spare:     m.slots[1-m.running].slot(names[1-m.running]),
		TrialBoot: m.runningTrial,
	}, nil
}

// Check implements slots.Scheme.
func (m *Machine) Check(_ context.Context, image osimage.Config) error {
	if strings.Compare(image.Version, m.slots[m.running].version) <= 0 {
		return agentslots.Refuse(v1alpha1.ReasonVersionNotNewer, "version %s is not newer than %s; offer a newer one",
			image.Version, m.slots[m.running].version)
	}

	return nil
}

// Stage implements slots.Scheme.
func (m *Machine) Stage(ctx context.Context, image agentslots.Source, progress agentslots.Progress) error {
	m.point("stage")

	config := image.Config()
	spare := &m.slots[1-m.running]

	if m.runningTrial {
		m.brokef("the spare slot was written during a trial boot, in which it is the known-good one")
	}

	spare.entry, spare.counted = "", false

	if spare.holds() != config.RootHash && spare.writing != config.Version {
		*spare = disk{writing: config.Version}
	}

	for spare.holds() != config.RootHash {
		m.point("write")

		if len(m.StageErrors) > 0 {
			err := m.StageErrors[0]
			m.StageErrors = m.StageErrors[1:]

			return err
		}

		if ctx.Err() != nil {
			return ctx.Err()
		}

		spare.bytes += chunk
		m.written += chunk
		m.downloaded += chunk / 2
		progress(osimage.Progress{
			Stage: osimage.Writing, Written: spare.bytes, Verified: spare.bytes, Total: imageSize,
			Fetched: spare.bytes / 2, ToFetch: imageSize / 2,
		})

		if spare.bytes >= imageSize {
			spare.writing, spare.staged = "", config.RootHash
		}
	}

	m.point("staged")

	return nil
}

// Staged implements slots.Scheme.
func (m *Machine) Staged(_ context.Context, image osimage.Config) (bool, error) {
	return m.slots[1-m.running].holds() == image.RootHash, nil
}

// Arm implements slots.Scheme.
func (m *Machine) Arm(_ context.Context, image osimage.Config, tries int) error {
	m.point("arm")

	if len(m.ArmErrors) > 0 {
		err := m.ArmErrors[0]
		m.ArmErrors = m.ArmErrors[1:]

		return err
	}

	spare := &m.slots[1-m.running]
	if spare.holds() != image.RootHash {
		return agentslots.ErrNotStaged
	}

	spare.version, spare.rootHash, spare.staged = image.Version, image.RootHash, ""
	spare.count(tries, 0)
	m.point("armed")

	return nil
}

// Disarm implements slots.Scheme.
func (m *Machine) Disarm(context.Context) error {
	m.point("disarm")

	spare := &m.slots[1-m.running]
	if spare.assessment() == agentslots.Good {
		m.brokef("disarmed the known-good slot")
	}

	spare.entry, spare.counted = "", false
	m.point("disarmed")

	return nil
}

// ErrNotOnTrial is returned by MarkBad.
var ErrNotOnTrial = errors.New("not a trial boot")

// MarkBad implements slots.Scheme.
func (m *Machine) MarkBad(context.Context) error {
	m.point("mark-bad")

	if !m.runningTrial {
		return ErrNotOnTrial
	}

	slot := &m.slots[m.running]
	slot.count(0, slot.done)
	m.point("marked-bad")

	return nil
}

// Moved is what agent.Options.Moved asks for.
func (m *Machine) Moved() (downloaded, written int64) { return m.downloaded, m.written }
