package redfish

import (
	"context"
	"time"

	"github.com/stayput-dev/stayput/bmc"
)

// Diagnosis is what a read-only look at a BMC gives. What could not be read is in Failures.
type Diagnosis struct {
	// RedfishVersion, Vendor and Product are the service root's.
	RedfishVersion, Vendor, Product string
	// BMCFirmware is the version of the BMC's firmware.
	BMCFirmware string
	// Clock is the BMC's clock, zero when it does not say; ReadAt is ours at that moment.
	Clock, ReadAt time.Time
	// Sessions is how many sessions are open at the BMC, ours included; -1 when it does not say.
	Sessions int
	// Actions are the power actions that it offers.
	Actions []bmc.Action
	// BootTargets are the targets of a boot override that it offers; empty: it does not say.
	BootTargets []bmc.BootTarget
	// MediaSlots are its virtual drives.
	MediaSlots []bmc.MediaSlot
	// Latency is how long one read of the system took, with connecting: connections are not kept.
	Latency time.Duration
	// Failures are the reads that failed, as *bmc.Error.
	Failures []error
}

// Diagnoser is a bmc.Machine that can be diagnosed; what Open gives is one.
type Diagnoser interface {
	bmc.Machine
	// Diagnose reads everything that Diagnosis holds. It changes nothing and may take many requests. Its error is that
	// the system could not be read at all.
	Diagnose(ctx context.Context) (Diagnosis, error)
}

var _ Diagnoser = (*machine)(nil)

// Diagnose implements Diagnoser.
func (m *machine) Diagnose(ctx context.Context) (Diagnosis, error) {
	leave, err := m.enter(ctx, "diagnosing")
	if err != nil {
		return Diagnosis{}, err
	}
	defer leave()
	began := time.Now()
	now, err := m.readSystem()
	if err != nil {
		return Diagnosis{}, err
	}
	d := Diagnosis{
		RedfishVersion: bmc.OneLine(m.root.RedfishVersion), Vendor: bmc.OneLine(m.root.Vendor), Product: bmc.OneLine(m.root.Product),
		Latency: time.Since(began), Sessions: -1,
	}
	note := func(err error) {
		if err != nil {
			d.Failures = append(d.Failures, err)
		}
	}
	managed, err := m.readManager(now)
	note(err)
	d.BMCFirmware, d.ReadAt = bmc.OneLine(managed.FirmwareVersion), time.Now()
	if at, err := time.Parse(time.RFC3339, managed.DateTime); err == nil {
		d.Clock = at
	}
	var sessions struct {
		Count *int `json:"Members@odata.count"`
	}
	_, err = m.getOptional("counting sessions", m.sessions, &sessions)
	note(err)
	if sessions.Count != nil {
		d.Sessions = *sessions.Count
	}
	d.Actions, err = m.offeredActions(now)
	note(err)
	places, err := m.bootPlaces(now)
	note(err)
	d.BootTargets = bootState(places).Offered
	drives, err := m.drives()
	note(err)
	d.MediaSlots = m.slots(drives)

	return d, nil
}
