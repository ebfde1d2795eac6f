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
	"github.com/stayput-dev/stayput/controllers/hosts"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// observe implements effects.
func (s *session) observe(ctx context.Context) (bmc.Observation, error) {
	if _, err := s.backoffs.active(s.request, s.clock.Now()); err != nil {
		s.bmcErr = err

		return bmc.Observation{}, err
	}
	var seen bmc.Observation
	err := s.use(ctx, func(ctx context.Context, m machine) error {
		if err := s.checkIdentity(ctx, m); err != nil {
			return err
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
		s.bmcFailed(err)

		return bmc.Observation{}, err
	}
	s.seenAt = seen.At

	return seen, nil
}

// checkIdentity looks which machine answers: a session may be older than the machine behind it. Metal3 knows the machine
// by its host.
func (s *session) checkIdentity(ctx context.Context, m machine) error {
	behind, ok := m.(bmc.Machine)
	if !ok {
		return nil
	}
	identity, err := behind.Identity(ctx)
	if err != nil {
		return err
	}

	return bmc.CheckIdentity(identity, bmc.Identity{UUID: s.nodeUUID})
}

// use calls do with the way to the power.
func (s *session) use(ctx context.Context, do func(ctx context.Context, m machine) error) error {
	if !s.view.ViaMetal3 {
		return s.useBMC(ctx, func(ctx context.Context, m bmc.Machine) error { return do(ctx, m) })
	}
	if s.keyed == nil {
		s.keyed = &metal3Machine{reader: s.home, writer: s.hosts, host: s.host, busy: s.metal3Busy}
	}
	s.reached = true

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

	return s.bmcs.Do(ctx, options, func(ctx context.Context, m bmc.Machine) error {
		s.reached = true

		return do(ctx, m)
	})
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

// lookLife is how long after the power was read an action may be sent. Another system of the same BMC may have kept it
// busy in between, and a machine may have come back.
const lookLife = 30 * time.Second

// send implements effects.
func (s *session) send(ctx context.Context, action bmc.Action) error {
	err := s.use(ctx, func(ctx context.Context, m machine) error {
		if age := s.clock.Now().Sub(s.seenAt); age > lookLife {
			return &bmc.Error{
				Kind: bmc.Busy, Op: "sending " + string(action),
				Detail: fmt.Sprintf("the BMC was busy for %s after the power was read; nothing was sent", age.Round(time.Second)),
			}
		}

		if err := powerlease.Check(ctx); err != nil {
			return &bmc.Error{Kind: bmc.Busy, Op: "sending " + string(action), Err: err, Detail: err.Error() + "; nothing was sent"}
		}

		return m.Do(ctx, action)
	})
	if err == nil || bmc.KindOf(err) == bmc.Unknown {
		s.metrics.actions.WithLabelValues(string(action)).Inc()
	}
	if err != nil {
		s.bmcFailed(err)
	}

	return err
}

// setBoot implements effects. What fails here must not keep the machine from being reset, and is said.
func (s *session) setBoot(ctx context.Context) string {
	err := s.useBMC(ctx, func(ctx context.Context, m bmc.Machine) error {
		if err := m.SetBoot(ctx, bmc.Boot{Target: bmc.BootDisk}); err != nil {
			return err
		}
		state, err := m.Boot(ctx)
		if err == nil && state.Target != bmc.BootDisk {
			err = fmt.Errorf("%w: it says %s", errNotKept, state.Target)
		}

		return err
	})
	if err != nil {
		return fmt.Sprintf("not asked to boot from disk: %v", err)
	}

	return "it is to boot from disk once"
}

var errNotKept = errors.New("the BMC has not kept the boot override")

// Bounds of what is collected for a person.
const (
	evidenceTimeout = 2 * time.Minute
	maxLogEntries   = 10
	maxConsoleLines = 20
	maxLine         = 256
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
			missing = append(missing, "log and console: "+err.Error())
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
		line := v1alpha1.BMCLogEntry{Severity: entry.Severity, Message: v1alpha1.Cut(entry.Message, maxLine)}
		if !entry.At.IsZero() {
			line.At = new(metav1.NewTime(entry.At))
		}
		evidence.Log = append(evidence.Log, line)
	}
	console, ok := m.(bmc.Console)
	if !ok {
		return append(missing, "console: this protocol keeps none")
	}
	lines, err := console.ConsoleTail(ctx, maxConsoleLines)
	if err != nil {
		missing = append(missing, "console: "+err.Error())
	}
	for _, line := range lines[max(0, len(lines)-maxConsoleLines):] {
		evidence.Console = append(evidence.Console, v1alpha1.Cut(line, maxLine))
	}

	return missing
}

func (s *session) bmcFailed(err error) {
	s.bmcErr = err
	s.backoffs.failed(s.request, err, s.clock.Now())
	s.metrics.errors.WithLabelValues(string(bmc.KindOf(err))).Inc()
}
