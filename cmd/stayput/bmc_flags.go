package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
)

// bmcFlags say which BMC, as whom, and how the answer looks.
type bmcFlags struct {
	cluster *rolloutFlags

	credentialsFile, credentialsSecret string
	caFile                             string
	skipVerify, legacyTLS              bool
	cipherSuite                        int
	pause                              time.Duration
	uuid, serial                       string
	timeout                            time.Duration
	// wait is how long the use of a machine may take in addition.
	wait time.Duration
	// restarts tells that the machine is taken from what it does, and shall be on in the end.
	restarts bool
	output   answerFormat

	outside outside
}

// outside is what the commands reach.
type outside struct {
	connect func(*rolloutFlags) (client.Client, string, error)
	// leases makes a client for the Leases of the cluster.
	leases func(*rolloutFlags) (coordinationclient.LeasesGetter, error)
	open   func(context.Context, bmc.Options) (bmc.Machine, error)
	// in is where a person is asked.
	in io.Reader
	// clock measures how long an interrupted command goes on.
	clock clock.Clock
	// poll is the pause between two readings of the power; 0: bmc.Run's.
	poll time.Duration
}

func realOutside() outside {
	return outside{
		connect: (*rolloutFlags).connect, leases: (*rolloutFlags).leases, open: connect.Open, in: os.Stdin, clock: clock.RealClock{},
	}
}

const (
	defaultBMCTimeout = 2 * time.Minute
	// addressMark tells an address from the name of a host.
	addressMark = ":"
	// maxCipherSuite and maxPause are those of the host's annotations, too.
	maxCipherSuite = 17
	maxPause       = 10 * time.Second

	targetHelp = `TARGET is the address of a BMC, such as redfish://10.0.0.1/redfish/v1/Systems/1 or ipmi://10.0.0.1, or a
BareMetalHost, NAME or NAMESPACE/NAME. A BareMetalHost brings its own address, credentials and serial number. Otherwise
credentials come from a file, from a Secret, or are asked for; never from the command line, which others can see.`

	// actHelp is for what changes something.
	actHelp = `While it acts on a BareMetalHost it holds the host's power lease, so that neither the controller nor another command
acts beside it; it waits for it, for --timeout. An address has no lease: nothing keeps others out.

` + targetHelp
)

func newBMCFlags(command *cobra.Command, out outside) *bmcFlags {
	flags := &bmcFlags{cluster: newRolloutFlags(command), output: answerTable, outside: out}
	set := command.Flags()
	set.StringVar(&flags.credentialsFile, "credentials-file", "", "YAML file with username and password")
	set.StringVar(&flags.credentialsSecret, "credentials-secret", "", "Secret of the namespace with username and password")
	set.StringVar(&flags.caFile, "bmc-ca-file", "", "PEM certificates to verify the BMC with, in place of the system's")
	set.BoolVar(&flags.skipVerify, "bmc-skip-verify", false, "do not verify the BMC's certificate")
	set.BoolVar(&flags.legacyTLS, "bmc-legacy-tls", false, "allow TLS 1.2 without forward secrecy, which some old BMCs have only")
	set.IntVar(&flags.cipherSuite, "ipmi-cipher-suite", 0,
		"IPMI: 17 where the BMC has no other; 0: what the host's annotation says, or 3")
	set.DurationVar(&flags.pause, "ipmi-pause", 0,
		"IPMI: how long to leave a BMC alone that cannot take requests one after the other; 0: what the host's annotation says")
	set.StringVar(&flags.uuid, "expect-uuid", "", "refuse another machine than the one with this UUID")
	set.StringVar(&flags.serial, "expect-serial", "", "refuse another machine than the one with this serial number")
	set.DurationVar(&flags.timeout, "timeout", defaultBMCTimeout,
		"how long to wait for the BMC's answers in all, and before that for the host's power lease")
	set.VarP(&flags.output, "output", "o", "table, json or yaml")
	command.PreRunE = func(cmd *cobra.Command, _ []string) error { return flags.check(cmd) }

	return flags
}

var errFlag = errors.New("wrong flag")

// check refuses what cannot be meant, before anything is asked or done.
func (f *bmcFlags) check(cmd *cobra.Command) error {
	var empty error
	// An empty one would mean the same as none: another namespace, other credentials, another identity or none at all.
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if empty == nil && strings.TrimSpace(flag.Value.String()) == "" {
			empty = fmt.Errorf("%w: --%s %q is empty; is a variable of the shell unset? Give it a value, or leave the flag out",
				errFlag, flag.Name, flag.Value)
		}
	})
	switch {
	case empty != nil:
		return empty
	case f.timeout <= 0:
		return fmt.Errorf("%w: --timeout %s; use a time above 0, such as %s", errFlag, f.timeout, defaultBMCTimeout)
	case f.cipherSuite < 0, f.cipherSuite > maxCipherSuite:
		return fmt.Errorf("%w: --ipmi-cipher-suite %d; use a number from 1 to %d, such as 3 or 17, or 0 for what the host says, or 3",
			errFlag, f.cipherSuite, maxCipherSuite)
	case f.pause < 0, f.pause > maxPause:
		return fmt.Errorf("%w: --ipmi-pause %s; use a time from 0s to %s", errFlag, f.pause, maxPause)
	case f.uuid != "" && !isUUID(f.uuid):
		return fmt.Errorf("%w: --expect-uuid %q is no UUID that a machine can have, and nothing could be checked; "+
			"use 32 hexadecimal digits such as 27946b59-9e44-4fa7-8e91-f3527a1ef094, not all 0 or f, as "+
			"`stayput bmc identify` shows it, or leave the flag out", errFlag, redacted(f.uuid))
	default:
		return nil
	}
}

// isUUID knows the two ways in which a UUID is written. All zeros and all ones are what boards have that were given none.
func isUUID(text string) bool {
	matched, err := regexp.MatchString(`^([0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{32})$`, text)
	digits := strings.ReplaceAll(strings.ToLower(text), "-", "")

	return err == nil && matched && strings.Trim(digits, "0") != "" && strings.Trim(digits, "f") != ""
}

// required is what the flags ask for: a BMC that does not tell it is refused before anything is changed.
func (f *bmcFlags) required() bmc.Identity { return bmc.Identity{UUID: f.uuid, Serial: f.serial} }
