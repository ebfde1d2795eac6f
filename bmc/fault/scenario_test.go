package fault_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// Outcomes of an operation beside the driver's kinds of error.
const (
	succeeds bmc.Kind = ""
	expires           = bmc.NotFollowed
	wrong    bmc.Kind = "Wrong" // what was read is not what is true
)

// play is what is done to a BMC with a fault, and what must come of it.
type play struct {
	fault fault.Kind
	// does is the operation, by name.
	does string
	// ends are the outcomes that are right; none means success.
	ends []bmc.Kind
	// power is what must be true in the end; "" leaves it open.
	power string
	// acts is how many requests of each type the BMC may have accepted; nil: at most one of each.
	acts map[string]int
	// first injects the fault before the driver connects.
	first bool
	// tls, and hurried: see newWorld.
	tls, hurried bool
	// leaves are sessions that the client cannot have ended.
	leaves bool
	// only chooses profiles; nil: all.
	only func(simulator.Profile) bool
	// except gives other outcomes for profiles.
	except func(simulator.Profile) []bmc.Kind
}

// outcomes are those that are right.
func (p play) outcomes() []bmc.Kind {
	if len(p.ends) == 0 {
		return []bmc.Kind{succeeds}
	}

	return p.ends
}

// outcome is what came of a play.
type outcome struct {
	kind    bmc.Kind
	err     error
	all     []error
	took    time.Duration
	world   *world
	problem []string
}

// errRead is an answer that is not what is true.
var errRead = errors.New("what was read is not what is true")

func kindOf(err error) bmc.Kind {
	switch {
	case err == nil:
		return succeeds
	case errors.Is(err, errRead):
		return wrong
	default:
		return bmc.KindOf(err)
	}
}

// perform plays one fault against one profile.
func perform(ctx context.Context, p play, profile simulator.Profile) outcome {
	w, err := newWorld(profile, p.tls, p.hurried)
	if err != nil {
		return outcome{problem: []string{err.Error()}}
	}
	defer w.close()
	began := time.Now()
	result := outcome{world: w}
	inject := func() error { return w.bmc.Inject(p.fault) }
	if p.first {
		if err := inject(); err != nil {
			return outcome{problem: []string{err.Error()}}
		}
		inject = func() error { return nil }
	}
	result.all, result.err = operations()[p.does](ctx, w, inject)
	result.kind, result.took = kindOf(result.err), time.Since(began)
	result.problem = judge(p, profile, &result)

	return result
}

func judge(p play, profile simulator.Profile, got *outcome) []string {
	var problems []string
	say := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	w := got.world
	want := p.outcomes()
	if p.except != nil {
		if other := p.except(profile); other != nil {
			want = other
		}
	}
	if !slices.Contains(want, got.kind) {
		say("ends with %q (%v), want one of %q", got.kind, got.err, want)
	}
	for _, err := range append(got.all, got.err) {
		if found := secret(err); found != "" {
			say("an error holds a credential: %s", found)
		}
	}
	for _, id := range w.bmc.IDs() {
		for kind, count := range w.bmc.Simulator.Accepted(id) {
			limit := 1
			if more, ok := p.acts[kind]; ok {
				limit = more
			}
			if id != w.id {
				limit = 0
			}
			if count > limit {
				say("system %s accepted %d x %s, want at most %d", id, count, kind, limit)
			}
		}
	}
	if power := w.bmc.Simulator.State(w.id).Power; p.power != "" && power != p.power {
		say("the power is %s in the end, want %s", power, p.power)
	}
	counts := w.bmc.Simulator.Counts()
	if counts.Sessions != 0 && !p.leaves {
		say("%d sessions are left", counts.Sessions)
	}
	if counts.Concurrent > 1 && !p.hurried {
		say("%d requests at once", counts.Concurrent)
	}
	if stolen := w.stolen.Load(); stolen > 0 {
		say("%d requests went to another host", stolen)
	}
	if got.took > maxTime {
		say("took %s, want at most %s", got.took, maxTime)
	}

	return problems
}

// maxTime bounds one play, in real time on a busy machine.
const maxTime = 90 * time.Second

type does = func(ctx context.Context, w *world, inject func() error) (all []error, err error)

// operations are what a play can do, by name.
func operations() map[string]does {
	return map[string]does{
		"open":        openOnly(func(w *world) string { return w.bmc.Address(w.id) }),
		"open any":    openOnly(func(w *world) string { return w.bmc.Address("") }),
		"power":       withMachine(readPower),
		"no power":    withMachine(readNoPower),
		"identity":    withMachine(readIdentity),
		"log":         withMachine(readLog),
		"console":     withMachine(readConsole),
		"boot":        withMachine(setBoot(bmc.Boot{Target: bmc.BootCD}, true)),
		"boot lost":   withMachine(setBoot(bmc.Boot{Target: bmc.BootCD}, false)),
		"boot always": withMachine(setBoot(bmc.Boot{Target: bmc.BootPXE, Continuous: true}, true)),
		"boot UEFI":   withMachine(setBoot(bmc.Boot{Target: bmc.BootCD, Mode: bmc.ModeUEFI}, true)),
		"boot Legacy": withMachine(setBoot(bmc.Boot{Target: bmc.BootCD, Mode: bmc.ModeLegacy}, true)),
		"boot again":  withMachine(setBootAgain),
		"media":       withMachine(useMedia),
		"no media":    withMachine(listNoMedia),
		"soft restart": withMachine(func(ctx context.Context, _ *world, m bmc.Machine) error {
			return m.Do(ctx, bmc.ActionSoftRestart)
		}),
		"force off": withMachine(func(ctx context.Context, _ *world, m bmc.Machine) error {
			return m.Do(ctx, bmc.ActionForceOff)
		}),
		"reset":    operate(bmc.IntentRestart),
		"off":      operate(bmc.IntentOff),
		"shutdown": operate(bmc.IntentShutdown),
		"cycle":    operate(bmc.IntentCycle),
		"on, off":  onThenOff,
		"off race": offRace,
	}
}

func openOnly(address func(*world) string) does {
	return func(ctx context.Context, w *world, inject func() error) ([]error, error) {
		if err := inject(); err != nil {
			return nil, err
		}
		options, err := w.optionsFor(address(w))
		if err != nil {
			return nil, err
		}
		w.options = options
		m, err := w.open(ctx)
		if err != nil {
			return nil, err
		}

		return []error{m.Close(ctx)}, nil
	}
}

// withMachine opens, injects the fault, and does something.
func withMachine(do func(context.Context, *world, bmc.Machine) error) does {
	return func(ctx context.Context, w *world, inject func() error) ([]error, error) {
		m, err := w.open(ctx)
		if err != nil {
			return nil, err
		}
		if err := inject(); err != nil {
			return nil, err
		}
		bounded, cancel := context.WithTimeout(ctx, maxTime)
		defer cancel()
		err = do(bounded, w, m)

		return []error{m.Close(ctx)}, err
	}
}

func operate(intent bmc.Intent) does {
	return func(ctx context.Context, w *world, inject func() error) ([]error, error) {
		return run(ctx, &operation{place: w, intent: intent, poll: poll}, w, inject)
	}
}

func run(ctx context.Context, o *operation, w *world, inject func() error) ([]error, error) {
	// Connected before the fault, as a cached session is.
	m, err := w.open(ctx)
	if err == nil {
		o.machine = m
	}
	o.note(err)
	if err := inject(); err != nil {
		return nil, err
	}
	err = o.run(ctx)
	o.close(ctx)

	return o.errors, err
}

func onThenOff(ctx context.Context, w *world, inject func() error) ([]error, error) {
	w.bmc.Simulator.Change(w.id, func(s *simulator.State) { s.Power = "Off" })
	all, err := operate(bmc.IntentOn)(ctx, w, inject)
	if err != nil {
		return all, err
	}
	more, err := operate(bmc.IntentOff)(ctx, w, func() error { return nil })

	return append(all, more...), err
}

// offRace lets the machine go off by itself between the last read and the action.
func offRace(ctx context.Context, w *world, inject func() error) ([]error, error) {
	return run(ctx, &operation{place: w, intent: bmc.IntentOff, poll: poll, before: func() {
		w.bmc.Simulator.Change(w.id, func(s *simulator.State) { s.Power = "Off" })
	}}, w, inject)
}

func readPower(ctx context.Context, _ *world, m bmc.Machine) error {
	power, err := m.Power(ctx)
	switch {
	case err != nil && power != bmc.PowerUnknown:
		return fmt.Errorf("%w: power %s with error %w", errRead, power, err)
	case err == nil && power != bmc.PowerOn:
		return fmt.Errorf("%w: power %s", errRead, power)
	default:
		return err
	}
}

func readNoPower(ctx context.Context, _ *world, m bmc.Machine) error {
	power, err := m.Power(ctx)
	if err == nil && power != bmc.PowerUnknown {
		return fmt.Errorf("%w: power %s", errRead, power)
	}

	return err
}

func readIdentity(ctx context.Context, w *world, m bmc.Machine) error {
	got, err := m.Identity(ctx)
	if err != nil {
		return err
	}
	profile, state := w.bmc.Simulator.Profile(), w.bmc.Simulator.State(w.id)
	want := bmc.Identity{
		UUID: strings.ToLower(state.UUID), Serial: state.Serial, Model: profile.Model, Manufacturer: profile.Manufacturer,
		BMCFirmware: profile.Firmware,
	}
	if got != want {
		return fmt.Errorf("%w: identity %+v, want %+v", errRead, got, want)
	}

	return nil
}

func readLog(ctx context.Context, _ *world, m bmc.Machine) error {
	entries, err := m.Log(ctx, 2)
	if err != nil {
		return err
	}
	if len(entries) != 2 || entries[0].Severity != "Critical" || entries[0].At.IsZero() ||
		!entries[0].At.After(entries[1].At) || !strings.Contains(entries[1].Message, "powered on") {
		return fmt.Errorf("%w: log %+v", errRead, entries)
	}

	return nil
}

// readConsole reads the last three of the lines that were there when it began.
func readConsole(ctx context.Context, w *world, m bmc.Machine) error {
	console, ok := m.(bmc.Console)
	if !ok {
		return fmt.Errorf("%w: no console", errRead)
	}
	printed := w.bmc.Simulator.Console()
	want := printed[len(printed)-3:]
	for i, line := range want {
		want[i] = strings.Join(bmc.ConsoleLines(line), "")
	}
	got, err := console.ConsoleTail(ctx, 3)
	if err != nil {
		return err
	}
	text := strings.Join(got, "")
	if !slices.Equal(got, want) || strings.ContainsFunc(text, unicode.IsControl) || strings.ContainsRune(text, '\u202e') {
		return fmt.Errorf("%w: console %q, want %q", errRead, got, want)
	}

	return nil
}

// setBoot sets an override once and reads it back. kept tells whether the BMC keeps it; when not, the reading must say so.
func setBoot(want bmc.Boot, kept bool) func(context.Context, *world, bmc.Machine) error {
	return func(ctx context.Context, w *world, m bmc.Machine) error {
		setErr := m.SetBoot(ctx, want)
		got, err := m.Boot(ctx)
		if err != nil {
			return err
		}
		same := got.Target == want.Target && got.Continuous == want.Continuous && (want.Mode == "" || got.Mode == want.Mode)
		truth := w.bmc.Simulator.State(w.id).Boot
		switch {
		case setErr != nil:
			return setErr
		case same != kept:
			return fmt.Errorf("%w: override %+v, want %+v (the BMC has %+v)", errRead, got.Boot, want, truth)
		default:
			return nil
		}
	}
}

// setBootAgain sets a mode too, and again when the BMC was busy or shows another, as a caller does that reads back.
func setBootAgain(ctx context.Context, w *world, m bmc.Machine) error {
	want := bmc.Boot{Target: bmc.BootCD, Mode: bmc.ModeUEFI}
	var err error
	for range 3 {
		if err = setBoot(want, true)(ctx, w, m); err == nil {
			return nil
		}
		w.wait(poll)
	}

	return err
}

// useMedia inserts an image into the first slot that takes a CD, sees it, ejects it, and sees it gone. A slot that
// refuses makes it try the next one.
func useMedia(ctx context.Context, w *world, m bmc.Machine) error {
	slots, err := m.Media(ctx)
	if err != nil {
		return err
	}
	refused := fmt.Errorf("%w: slots %+v", errRead, slots)
	for _, slot := range slots {
		if !slot.Insertable || !slices.Contains(slot.Types, "CD") && !slices.Contains(slot.Types, "DVD") {
			continue
		}
		err := m.Insert(ctx, slot.ID, image)
		if err == nil {
			return seeAndEject(ctx, w, m, slot.ID)
		}
		refused = err
		if kind := bmc.KindOf(err); kind != bmc.Unsupported && kind != bmc.Conflict {
			return err
		}
	}

	return refused
}

func seeAndEject(ctx context.Context, w *world, m bmc.Machine, id string) error {
	if truth := w.bmc.Simulator.State(w.id).Images[id]; truth != image {
		return fmt.Errorf("%w: Insert says done, and slot %s has %q", errRead, id, truth)
	}
	slot, err := findSlot(ctx, m, id)
	if err != nil {
		return err
	}
	if !slot.Inserted || slot.Image != image {
		return fmt.Errorf("%w: after the insert slot %+v", errRead, slot)
	}
	if err := m.Eject(ctx, id); err != nil {
		return err
	}
	if truth, inserted := w.bmc.Simulator.State(w.id).Images[id]; inserted {
		return fmt.Errorf("%w: Eject says done, and slot %s has %q", errRead, id, truth)
	}
	w.wait(10 * time.Second)
	if slot, err = findSlot(ctx, m, id); err == nil && (slot.Inserted || slot.Image != "") {
		return fmt.Errorf("%w: after the eject slot %+v", errRead, slot)
	}

	return err
}

func findSlot(ctx context.Context, m bmc.Machine, id string) (bmc.MediaSlot, error) {
	slots, err := m.Media(ctx)
	if err != nil {
		return bmc.MediaSlot{}, err
	}
	at := slices.IndexFunc(slots, func(s bmc.MediaSlot) bool { return s.ID == id })
	if at < 0 {
		return bmc.MediaSlot{}, fmt.Errorf("%w: slots %+v", errRead, slots)
	}

	return slots[at], nil
}

func listNoMedia(ctx context.Context, _ *world, m bmc.Machine) error {
	slots, err := m.Media(ctx)
	if err == nil && len(slots) > 0 {
		return fmt.Errorf("%w: slots %+v", errRead, slots)
	}

	return err
}
