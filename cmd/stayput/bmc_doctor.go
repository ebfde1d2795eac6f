package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/redfish"
)

// verdict is what a line of the doctor says.
type verdict string

// The verdicts.
const (
	verdictOK      verdict = "ok"
	verdictWarning verdict = "warning"
	verdictFailed  verdict = "failed"
	verdictUnknown verdict = "unknown"
)

// finding is one line of the doctor.
type finding struct {
	Check   string  `json:"check"`
	Verdict verdict `json:"verdict"`
	Found   string  `json:"found"`
}

var (
	errUnfit = errors.New("the BMC is not fit for Stayput")
	// errUnexamined says nothing about the BMC.
	errUnexamined = errors.New("the BMC was not examined; correct what has failed, and examine it again")
)

const (
	// maxClockSkew: a log whose times are further off misleads.
	maxClockSkew = 5 * time.Minute
	// maxLatency is of one read. Ironic's agents wait 60 s for an answer; a BMC that takes this long is overloaded.
	maxLatency = 10 * time.Second
	// manySessions: iDRACs have 8.
	manySessions = 6
	// fixedChecks is how many checks there are of every BMC that answers.
	fixedChecks = 7
)

func newBMCDoctorCommand(out outside) *cobra.Command {
	command := &cobra.Command{
		Use: "doctor TARGET", Short: "Check whether a BMC is fit for Stayput", Args: takes(cobra.ExactArgs(1)),
		Long: `Check whether a BMC is fit for Stayput: reachable, trusted, its system found and the expected one, and what it offers.
Nothing is changed. The exit code is 1 when a check has failed. What has to be there before a BMC can be asked (cluster, host,
address, credentials, ipmitool) has checks of its own, which say nothing about the BMC.

` + targetHelp,
	}
	flags := newBMCFlags(command, out)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		findings, err := flags.examine(cmd, args[0])
		if cmd.Context().Err() != nil {
			return err
		}
		rows := append(make([][]string, 0, 1+len(findings)), []string{"CHECK", "VERDICT", "FOUND"})
		verdict := error(nil)
		for _, each := range findings {
			rows = append(rows, []string{each.Check, string(each.Verdict), each.Found})
			if each.Verdict == verdictFailed {
				verdict = errUnfit
			}
		}
		if isOurs(err) {
			verdict = errUnexamined
		}

		return cmp.Or(flags.output.print(cmd.OutOrStdout(), findings, rows), verdict)
	}

	return command
}

// examine finds what it can; it ends with the check that nothing comes after, whose error it gives, too.
func (f *bmcFlags) examine(cmd *cobra.Command, name string) ([]finding, error) {
	var findings []finding
	err := f.with(cmd, name, func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
		findings = append(findings, finding{"reachable", verdictOK, target.options.Address.HostPort()}, trustFinding(target.options),
			finding{"login", verdictOK, "as " + target.options.Credentials.Username})
		identity, err := machine.Identity(ctx)
		if err != nil {
			return err
		}
		findings = append(findings, identityFinding(identity, target.expected))
		diagnoser, ok := machine.(redfish.Diagnoser)
		if !ok {
			more, err := examineMachine(ctx, machine)
			findings = append(findings, more...)

			return err
		}
		found, err := diagnoser.Diagnose(ctx)
		if err != nil {
			return err
		}
		findings = append(findings, diagnosed(found)...)

		return nil
	})
	if err != nil {
		findings = append(findings, finding{failedCheck(err), verdictFailed, err.Error()})
	}

	return findings, err
}

// isOurs tells whether an error was there before the BMC was asked anything.
func isOurs(err error) bool {
	_, early := errors.AsType[checkError](err)

	return early || errors.Is(err, exec.ErrNotFound)
}

// trustFinding tells what keeps a third party from the password.
func trustFinding(options bmc.Options) finding {
	switch {
	case options.Address.Protocol == bmc.IPMI:
		// RAKP message 2, IPMI 2.0, 13.21 (CVE-2013-4786).
		return finding{"certificate", verdictWarning, "none: an IPMI BMC gives a hash of the password to everyone who reaches it; " +
			"keep it in a network of its own"}
	case options.Address.Scheme == "http":
		return finding{"certificate", verdictWarning, "none: the address is http, so that the password can be read on the way"}
	case options.SkipVerify:
		return finding{"certificate", verdictWarning, "not verified, as was asked"}
	case options.LegacyTLS:
		return finding{"certificate", verdictWarning, "verified, but old cipher suites are allowed, as was asked"}
	default:
		return finding{"certificate", verdictOK, "verified"}
	}
}

// examineMachine finds what any machine tells.
func examineMachine(ctx context.Context, machine bmc.Machine) ([]finding, error) {
	began := time.Now()
	power, err := machine.Power(ctx)
	if err != nil {
		return nil, err
	}
	latency := latencyFinding(time.Since(began))
	boot, err := machine.Boot(ctx)
	override := finding{"boot override", verdictOK, bootOf(boot).words()}
	if err != nil {
		override = finding{"boot override", verdictWarning, err.Error()}
	}

	return []finding{
		{"power", verdictOK, string(power)},
		override,
		latency,
		{"service", verdictUnknown, "this protocol tells no more: not which actions are offered, nor sessions, nor the clock"},
	}, nil
}

func latencyFinding(latency time.Duration) finding {
	found := finding{"latency", verdictOK, latency.Round(time.Millisecond).String() + " for one read"}
	if latency > maxLatency {
		found.Verdict = verdictWarning
	}

	return found
}

// failedCheck names the check that an error belongs to.
func failedCheck(err error) string {
	if early, ok := errors.AsType[checkError](err); ok {
		return early.check
	}
	if errors.Is(err, exec.ErrNotFound) {
		return "ipmitool"
	}
	switch bmc.KindOf(err) {
	case bmc.Auth:
		return "login"
	case bmc.Untrusted:
		return "certificate"
	case bmc.NotFound, bmc.Ambiguous:
		return "system"
	case bmc.Mismatch:
		return "identity"
	default:
		return "reachable"
	}
}

func identityFinding(got, want bmc.Identity) finding {
	found := fmt.Sprintf("UUID %s, serial %s, %s %s", orDash(got.UUID), orDash(got.Serial), got.Manufacturer, got.Model)
	switch likeness, why := bmc.CompareIdentity(got, want); likeness {
	case bmc.LikenessOther:
		return finding{"identity", verdictFailed, why}
	case bmc.LikenessUnknown:
		return finding{"identity", verdictUnknown, found + "; " + why}
	case bmc.LikenessNone:
		return finding{"identity", verdictUnknown, found + "; nothing is expected of it (--expect-uuid, --expect-serial)"}
	case bmc.LikenessSame:
	}

	return finding{"identity", verdictOK, found}
}

// diagnosed makes findings of what was read.
func diagnosed(d redfish.Diagnosis) []finding {
	sessions := finding{"sessions", verdictOK, fmt.Sprintf("%d open", d.Sessions)}
	switch {
	case d.Sessions < 0:
		sessions = finding{"sessions", verdictUnknown, "the BMC does not say"}
	case d.Sessions >= manySessions:
		sessions = finding{"sessions", verdictWarning, fmt.Sprintf("%d open; some BMCs have 8 in all: look who leaves them open", d.Sessions)}
	}
	findings := append(make([]finding, 0, fixedChecks+len(d.Failures)),
		finding{"service", verdictOK, fmt.Sprintf(
			"Redfish %s %s %s, BMC firmware %s", d.RedfishVersion, d.Vendor, d.Product, orDash(d.BMCFirmware))},
		actionsFinding(d.Actions),
		listFinding("boot override", joined(d.BootTargets), slices.Contains(d.BootTargets, bmc.BootDisk), "Disk is not offered"),
		mediaFinding(d.MediaSlots), clockFinding(d.Clock, d.ReadAt), sessions, latencyFinding(d.Latency))
	for _, err := range d.Failures {
		findings = append(findings, finding{"reading", verdictWarning, err.Error()})
	}

	return findings
}

func actionsFinding(offered []bmc.Action) finding {
	has := func(action bmc.Action) bool { return slices.Contains(offered, action) }
	switch {
	case len(offered) == 0:
		return finding{"power actions", verdictFailed, "none is offered; may this account change power?"}
	case has(bmc.ActionOn) && (has(bmc.ActionForceRestart) || has(bmc.ActionForceOff)):
		return finding{"power actions", verdictOK, joined(offered)}
	default:
		return finding{"power actions", verdictFailed, joined(offered) + "; On, and ForceRestart or ForceOff, are needed"}
	}
}

// listFinding is about what Stayput can do without.
func listFinding(check, found string, ok bool, missing string) finding {
	switch {
	case ok:
		return finding{check, verdictOK, found}
	case found == "":
		return finding{check, verdictUnknown, "the BMC does not say what it offers"}
	default:
		return finding{check, verdictWarning, found + "; " + missing}
	}
}

func mediaFinding(slots []bmc.MediaSlot) finding {
	names := make([]string, 0, len(slots))
	for _, each := range slots {
		if each.Insertable {
			names = append(names, each.ID)
		}
	}
	if len(names) == 0 {
		return finding{"virtual media", verdictWarning, "no drive takes an image"}
	}

	return finding{"virtual media", verdictOK, strings.Join(names, ", ")}
}

func clockFinding(clock, readAt time.Time) finding {
	skew := clock.Sub(readAt).Abs().Round(time.Second)
	switch {
	case clock.IsZero():
		return finding{"clock", verdictUnknown, "the BMC does not say"}
	case skew > maxClockSkew:
		return finding{"clock", verdictWarning, fmt.Sprintf("%s off; times in its log mislead", skew)}
	default:
		return finding{"clock", verdictOK, fmt.Sprintf("%s off", skew)}
	}
}
