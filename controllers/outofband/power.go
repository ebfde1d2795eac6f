package outofband

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/controllers/hosts"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// observe implements effects.
func (s *session) observe(ctx context.Context, fromDisk bool) (seen bmc.Observation, boot string, err error) {
	err = s.use(ctx, func(ctx context.Context, m machine) error {
		if behind, ok := m.(bmc.Machine); ok && fromDisk {
			boot = s.setBoot(ctx, behind)
		}
		offered, err := m.Actions(ctx)
		if err != nil {
			return err
		}
		at := s.clock.Now()
		power, err := m.Power(ctx)
		if err != nil {
			return err
		}
		seen = bmc.Observation{Power: power, At: at, Offered: offered}

		return nil
	})
	if err != nil {
		return bmc.Observation{}, boot, s.failed(err)
	}
	s.lookedAt = s.clock.Now()

	return seen, boot, nil
}

// use calls do with the way to the power.
func (s *session) use(ctx context.Context, do func(ctx context.Context, m machine) error) error {
	if !s.view.ViaMetal3 {
		return s.useBMC(ctx, func(ctx context.Context, m bmc.Machine) error { return do(ctx, m) })
	}
	if s.keyed == nil {
		s.keyed = &metal3Machine{reader: s.home, writer: s.hosts, host: s.host, busy: s.metal3Busy}
	}

	return do(ctx, s.keyed)
}

// useBMC calls do with the machine behind the BMC, while no one else of this process talks to that BMC.
func (s *session) useBMC(ctx context.Context, do func(ctx context.Context, m bmc.Machine) error) error {
	options, err := hosts.BMC(s.host)
	if err != nil {
		return err
	}
	secret, err := s.secret(ctx)
	if err != nil {
		return err
	}
	options.Credentials, options.UUID, options.CA = credentials(secret), s.nodeUUID, s.options.BMCCA

	return s.bmcs.Do(ctx, options, do)
}

// metal3Busy looks at a host anew, before it is written.
func (s *session) metal3Busy(ctx context.Context, host *metal3.BareMetalHost) (string, error) {
	switch view := viewHost(&s.pool, host, s.update.Spec.OutOfBand.PowerVia); {
	case view.NotFound != "":
		return view.NotFound, nil
	case view.Busy != "":
		return view.Busy, nil
	case !view.ViaMetal3:
		return fmt.Sprintf("BareMetalHost %s/%s is not Metal3's any more", host.Namespace, host.Name), nil
	default:
		return pendingServicing(ctx, s.home, host)
	}
}

// secret reads the BMC's credentials live: no right to list Secrets is needed, and a corrected one works at once.
func (s *session) secret(ctx context.Context) (*corev1.Secret, error) {
	var secret corev1.Secret
	name := types.NamespacedName{Namespace: s.host.Namespace, Name: s.host.Spec.BMC.CredentialsName}
	err := s.home.Get(ctx, name, &secret)
	switch {
	case apierrors.IsNotFound(err) || name.Name == "":
		return nil, &bmc.Error{
			Kind: bmc.Auth, Op: "reading the BMC's credentials",
			Detail: fmt.Sprintf("there is no Secret %s; create it with keys username and password, or correct "+
				"spec.bmc.credentialsName of the BareMetalHost", name),
		}
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	default:
		return &secret, nil
	}
}

// lookLife is how long a look at the power may have ended before an action is sent. Another system of the same BMC may
// have kept it busy in between, and a machine may have come back.
const lookLife = 30 * time.Second

// send implements effects.
func (s *session) send(ctx context.Context, action bmc.Action, begins bool) error {
	var refusal error
	err := s.use(ctx, func(ctx context.Context, m machine) error {
		if refusal = s.maySend(ctx, begins); refusal != nil {
			return refusal
		}

		return m.Do(ctx, action)
	})
	if refusal != nil {
		// Ours, not the BMC's.
		return &bmc.Error{Kind: bmc.Busy, Op: "sending " + string(action), Err: err, Detail: err.Error() + "; nothing was sent"}
	}
	if err == nil || bmc.KindOf(err) == bmc.Unknown {
		s.metrics.actions.WithLabelValues(string(action)).Inc()
	}
	if err != nil {
		return s.failed(err)
	}

	return nil
}

var (
	errOldLook = errors.New("the BMC was busy since the power was read")
	errPace    = errors.New("the controller sends no more power actions in this minute")
)

// maySend is asked when nothing but the BMC is between us and the action. What goes on with a reset counts, and is never
// held up, since the machine may be off.
func (s *session) maySend(ctx context.Context, begins bool) error {
	now := s.clock.Now()
	if now.Sub(s.lookedAt) > lookLife {
		return errOldLook
	}
	if err := powerlease.Check(ctx); err != nil {
		return err
	}
	if !begins {
		s.pace.spend(now)
	} else if s.pace.take(now) > 0 {
		return errPace
	}

	return nil
}

// bootTimeout bounds asking the firmware for the disk.
const bootTimeout = 20 * time.Second

// setBoot says what came of it. What fails here must not keep the machine from being reset.
func (s *session) setBoot(ctx context.Context, m bmc.Machine) string {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	boot := bmc.Boot{Target: bmc.BootDisk}
	if s.host.Spec.BootMode == metal3.Legacy {
		boot.Mode = bmc.ModeLegacy
	}
	err := powerlease.Check(ctx)
	if err == nil {
		err = m.SetBoot(ctx, boot)
	}
	var state bmc.BootState
	if err == nil {
		if state, err = m.Boot(ctx); err == nil && state.Target != bmc.BootDisk {
			err = fmt.Errorf("%w: it says %s", errNotKept, state.Boot)
		}
	}
	switch {
	case err != nil:
		return v1alpha1.Cut(fmt.Sprintf("not asked to boot from disk: %v", err), maxBootText)
	case bmc.CheckBoot(state, boot) != nil: // good enough for this boot, but somebody may want to take it back
		return v1alpha1.Cut(fmt.Sprintf("asked to boot from disk once; the BMC keeps: %s", state.Boot), maxBootText)
	default:
		return "asked to boot from disk once"
	}
}

var errNotKept = errors.New("the BMC has not kept the boot override")

const maxBootText = 512

// Bounds of what is collected for a person.
const (
	evidenceTimeout = 2 * time.Minute
	maxLogEntries   = 10
	maxLine         = 256
	maxSeverity     = 32
)

// evidence implements effects.
func (s *session) evidence(ctx context.Context) *v1alpha1.PowerEvidence {
	ctx, cancel := context.WithTimeout(ctx, evidenceTimeout)
	defer cancel()
	evidence := &v1alpha1.PowerEvidence{CollectedAt: metav1.NewMicroTime(s.clock.Now())}
	var missing []string
	switch {
	case s.host == nil:
		missing = append(missing, "there is no host to ask")
	case s.view.ViaMetal3:
		missing = append(missing, "the BMC is Metal3's to talk to; see `stayput bmc log` and the BareMetalHost's events")
	default:
		err := s.useBMC(ctx, func(ctx context.Context, m bmc.Machine) error {
			missing = collect(ctx, m, evidence)

			return nil
		})
		if err != nil {
			missing = append(missing, "log: "+err.Error())
		}
	}
	evidence.Missing = v1alpha1.Cut(strings.Join(missing, "; "), maxMissing)

	return evidence
}

const maxMissing = 1024

// collect gives what it could not collect.
func collect(ctx context.Context, m bmc.Machine, evidence *v1alpha1.PowerEvidence) (missing []string) {
	entries, err := m.Log(ctx, maxLogEntries)
	if err != nil {
		missing = append(missing, "log: "+err.Error())
	}
	for _, entry := range entries[:min(len(entries), maxLogEntries)] {
		line := v1alpha1.BMCLogEntry{
			Severity: v1alpha1.Cut(entry.Severity, maxSeverity),
			Message:  v1alpha1.Cut(strings.Join(bmc.ConsoleLines(entry.Message), " "), maxLine),
		}
		if !entry.At.IsZero() {
			line.At = new(metav1.NewTime(entry.At))
		}
		evidence.Log = append(evidence.Log, line)
	}
	if console, ok := m.(bmc.Console); ok {
		_, err := console.ConsoleTail(ctx, 1)
		evidence.Console = err == nil
	}

	return missing
}

// failed counts an error on the way to the BMC. While the BMC is left alone for an earlier one, it is that one, and counted
// already.
func (s *session) failed(err error) error {
	if cause, paused := connect.Paused(err); paused {
		return cause
	}
	s.metrics.errors.WithLabelValues(string(bmc.KindOf(err))).Inc()

	return err
}
