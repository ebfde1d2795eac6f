package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

var (
	errNoCredentials = errors.New("no credentials")
	errTwoSources    = errors.New("credentials come from one place")
	errNoBMC         = errors.New("the host names no BMC")
	errUnknownWord   = errors.New("not understood")
	errFile          = errors.New("the credentials file cannot be used")
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
	// wait is how long the use of a machine may take, when that is longer than timeout.
	wait   time.Duration
	output answerFormat

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
}

func realOutside() outside {
	return outside{connect: (*rolloutFlags).connect, leases: (*rolloutFlags).leases, open: connect.Open, in: os.Stdin}
}

const (
	defaultBMCTimeout = 2 * time.Minute
	// addressMark tells an address from the name of a host.
	addressMark = ":"

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

	return flags
}

// bmcTarget is a BMC that was found.
type bmcTarget struct {
	name    string
	options bmc.Options
	// expected is what its machine must be.
	expected bmc.Identity
	// host is nil when only an address was given.
	host *metal3.BareMetalHost
	// cluster is where it is.
	cluster client.Client
}

// keepPowered is what the host says.
func (t bmcTarget) keepPowered() bool { return t.host != nil && t.host.Spec.DisablePowerOff }

// with opens the BMC of the target, calls use, and closes the session, also after an interrupt.
func (f *bmcFlags) with(
	cmd *cobra.Command, name string, use func(ctx context.Context, target bmcTarget, machine bmc.Machine) error,
) error {
	target, err := f.find(cmd.Context(), cmd.ErrOrStderr(), name)
	if err != nil {
		return err
	}

	return f.opened(cmd.Context(), target, use)
}

func (f *bmcFlags) opened(
	ctx context.Context, target bmcTarget, use func(ctx context.Context, target bmcTarget, machine bmc.Machine) error,
) (err error) {
	ctx, cancel := context.WithTimeout(ctx, max(f.timeout, f.wait))
	defer cancel()
	machine, err := f.outside.open(ctx, target.options)
	if err != nil {
		return advise(err)
	}
	defer func() { err = errors.Join(err, machine.Close(context.WithoutCancel(ctx))) }()

	return advise(use(ctx, target, machine))
}

// advise adds what to do next to an error of a BMC.
func advise(err error) error {
	failed, ok := errors.AsType[*bmc.Error](err)
	if !ok {
		return err
	}

	return fmt.Errorf("%w (%s: %s)", err, failed.Kind, failed.Kind.Advice())
}

// find finds out where the BMC is and as whom to talk to it.
func (f *bmcFlags) find(ctx context.Context, out io.Writer, name string) (bmcTarget, error) {
	if f.credentialsFile != "" && f.credentialsSecret != "" {
		return bmcTarget{}, fmt.Errorf("%w: give --credentials-file or --credentials-secret, not both", errTwoSources)
	}
	target := bmcTarget{name: name, expected: bmc.Identity{UUID: f.uuid, Serial: f.serial}}
	secret := types.NamespacedName{Name: f.credentialsSecret}
	isHost := !strings.Contains(name, addressMark)
	var cluster client.Client
	if isHost || secret.Name != "" {
		var err error
		if cluster, secret.Namespace, err = f.outside.connect(f.cluster); err != nil {
			return bmcTarget{}, err
		}
	}
	if isHost {
		if err := f.findHost(ctx, cluster, secret.Namespace, &target); err != nil {
			return bmcTarget{}, err
		}
		secret.Namespace = target.host.Namespace
		secret.Name = cmp.Or(secret.Name, target.host.Spec.BMC.CredentialsName)
	}
	var err error
	if isHost {
		target.options, err = hosts.BMC(target.host)
	} else {
		target.options.Address, err = bmc.ParseAddress(name)
	}
	if err != nil {
		return bmcTarget{}, err
	}
	if err := f.trust(&target); err != nil {
		return bmcTarget{}, err
	}
	target.options.Credentials, err = f.credentials(ctx, out, cluster, secret)

	return target, err
}

func (f *bmcFlags) findHost(ctx context.Context, cluster client.Client, namespace string, target *bmcTarget) error {
	key := types.NamespacedName{Namespace: namespace, Name: target.name}
	if before, after, found := strings.Cut(target.name, "/"); found {
		key = types.NamespacedName{Namespace: before, Name: after}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var host metal3.BareMetalHost
	err := cluster.Get(ctx, key, &host)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("reading BareMetalHost %s: %w; give -n NAMESPACE, or an address such as "+
			"redfish://HOST/redfish/v1/Systems/ID or ipmi://HOST", key, err)
	case err != nil:
		return fmt.Errorf("reading BareMetalHost %s: %w", key, err)
	case host.Spec.BMC.Address == "":
		return fmt.Errorf("BareMetalHost %s: %w; set spec.bmc.address", key, errNoBMC)
	}
	target.host, target.cluster = &host, cluster
	if hardware := host.Status.HardwareDetails; hardware != nil && target.expected.Serial == "" {
		target.expected.Serial = hardware.SystemVendor.SerialNumber
	}

	return nil
}

func (f *bmcFlags) trust(target *bmcTarget) error {
	target.options.UUID = target.expected.UUID
	target.options.LegacyTLS = target.options.LegacyTLS || f.legacyTLS
	target.options.SkipVerify = target.options.SkipVerify || f.skipVerify
	target.options.CipherSuite = cmp.Or(f.cipherSuite, target.options.CipherSuite)
	target.options.Pause = cmp.Or(f.pause, target.options.Pause)
	if f.caFile == "" {
		return nil
	}
	var err error
	if target.options.CA, err = os.ReadFile(f.caFile); err != nil {
		return fmt.Errorf("reading --bmc-ca-file: %w", err)
	}

	return nil
}

// credentials come from the file, the Secret, or a person.
func (f *bmcFlags) credentials(
	ctx context.Context, out io.Writer, cluster client.Client, key types.NamespacedName,
) (bmc.Credentials, error) {
	switch {
	case f.credentialsFile != "":
		return credentialsOfFile(f.credentialsFile)
	case key.Name != "":
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		var secret corev1.Secret
		if err := cluster.Get(ctx, key, &secret); err != nil {
			return bmc.Credentials{}, fmt.Errorf("reading Secret %s: %w", key, err)
		}

		return trimmed(string(secret.Data["username"]), string(secret.Data["password"])), nil
	default:
		return f.askCredentials(out)
	}
}

// trimmed is how baremetal-operator reads both.
func trimmed(username, password string) bmc.Credentials {
	return bmc.Credentials{Username: strings.TrimSpace(username), Password: strings.TrimSpace(password)}
}

func credentialsOfFile(path string) (bmc.Credentials, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading --credentials-file: %w", err)
	}
	var file struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	// The parser's error may quote the file.
	if err := yaml.UnmarshalStrict(data, &file); err != nil || file.Username == "" || file.Password == "" {
		return bmc.Credentials{}, fmt.Errorf("%w: --credentials-file %s: want YAML with the two fields username and password, "+
			"both of them text (quote what looks like a number)", errFile, path)
	}

	return trimmed(file.Username, file.Password), nil
}

func (f *bmcFlags) askCredentials(out io.Writer) (bmc.Credentials, error) {
	terminal, ok := f.outside.in.(*os.File)
	if !ok || !term.IsTerminal(int(terminal.Fd())) {
		return bmc.Credentials{}, fmt.Errorf("%w: give --credentials-file or --credentials-secret; without a terminal "+
			"nobody can be asked", errNoCredentials)
	}
	if err := writeText(out, "User name at the BMC: "); err != nil {
		return bmc.Credentials{}, err
	}
	username, err := bufio.NewReader(terminal).ReadString('\n')
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading the user name: %w", err)
	}
	if err := writeText(out, "Password: "); err != nil {
		return bmc.Credentials{}, err
	}
	password, err := term.ReadPassword(int(terminal.Fd()))
	if err != nil {
		return bmc.Credentials{}, fmt.Errorf("reading the password: %w", err)
	}

	return trimmed(username, string(password)), writeText(out, "\n")
}
