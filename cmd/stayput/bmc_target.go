package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

var (
	errNoBMC       = errors.New("the host names no BMC")
	errUnknownWord = errors.New("not understood")
)

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
	// source says, for a person, where the credentials come from; "" when they were typed.
	source string
}

// keepPowered is what the host says.
func (t bmcTarget) keepPowered() bool { return t.host != nil && t.host.Spec.DisablePowerOff }

// The checks, as doctor names them, that fail before the BMC is asked.
const (
	checkCluster     = "cluster"
	checkHost        = "host"
	checkAddress     = "address"
	checkCredentials = "credentials"
	checkTrust       = "certificate"
)

// checkError is an error with the check that it belongs to.
type checkError struct {
	error

	check string
}

func (e checkError) Unwrap() error { return e.error }

func failing(check string, err error) error {
	if err == nil {
		return nil
	}

	return checkError{err, check}
}

// with opens the BMC of the target, calls use, and closes the session, also after an interrupt.
func (f *bmcFlags) with(
	cmd *cobra.Command, name string, use func(ctx context.Context, target bmcTarget, machine bmc.Machine) error,
) error {
	target, err := f.find(cmd.Context(), cmd.ErrOrStderr(), name)
	if err != nil {
		return err
	}
	defer keepPipes()()

	return f.opened(cmd.Context(), cmd.ErrOrStderr(), target, use)
}

func (f *bmcFlags) opened(
	ctx context.Context, out io.Writer, target bmcTarget,
	use func(ctx context.Context, target bmcTarget, machine bmc.Machine) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, f.timeout+f.wait)
	defer cancel()
	machine, err := f.outside.open(ctx, target.options)
	if err != nil {
		return advise(err, target)
	}
	defer func() {
		// It changes nothing of what was done or read: as an error it would make a script act again.
		if err := machine.Close(context.WithoutCancel(ctx)); err != nil {
			fmt.Fprintf(out, "Note: the session at the BMC was not ended, and ends when it has been idle for long enough: %v\n", err)
		}
	}()

	return advise(use(ctx, target, machine), target)
}

// find finds out where the BMC is and as whom to talk to it. Its errors tell which check they belong to.
func (f *bmcFlags) find(ctx context.Context, out io.Writer, name string) (bmcTarget, error) {
	if f.credentialsFile != "" && f.credentialsSecret != "" {
		return bmcTarget{}, failing(checkCredentials,
			fmt.Errorf("%w: give --credentials-file or --credentials-secret, not both", errTwoSources))
	}
	target := bmcTarget{name: name, expected: bmc.Identity{UUID: f.uuid, Serial: f.serial}}
	secret := types.NamespacedName{Name: f.credentialsSecret}
	isHost := !strings.Contains(name, addressMark)
	if isHost || secret.Name != "" {
		var err error
		if target.cluster, secret.Namespace, err = f.outside.connect(f.cluster); err != nil {
			return bmcTarget{}, failing(checkCluster, err)
		}
	}
	var err error
	if isHost {
		if err := f.findHost(ctx, secret.Namespace, &target); err != nil {
			return bmcTarget{}, err
		}
		secret.Namespace = target.host.Namespace
		secret.Name = cmp.Or(secret.Name, target.host.Spec.BMC.CredentialsName)
		target.options, err = hosts.BMC(target.host)
	} else {
		target.options.Address, err = bmc.ParseAddress(name)
	}
	if err != nil {
		return bmcTarget{}, failing(checkAddress, addressProblem(err, target))
	}
	if err := f.trust(&target); err != nil {
		return bmcTarget{}, failing(checkTrust, err)
	}
	if err := f.credentials(ctx, out, &target, secret); err != nil {
		return bmcTarget{}, failing(checkCredentials, err)
	}

	return target, nil
}

// addressProblem names what holds the address. There is nothing to advise: the error says what to use.
func addressProblem(err error, target bmcTarget) error {
	if target.host == nil {
		text := strings.NewReplacer(libraryAddress, "the address", librarySecret, "a file, for --credentials-file").Replace(err.Error())

		return rewordedError{err, text}
	}

	return fmt.Errorf("BareMetalHost %s/%s: %w", target.host.Namespace, target.host.Name, err)
}

func (f *bmcFlags) findHost(ctx context.Context, namespace string, target *bmcTarget) error {
	key := types.NamespacedName{Namespace: namespace, Name: target.name}
	if before, after, found := strings.Cut(target.name, "/"); found {
		key = types.NamespacedName{Namespace: before, Name: after}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var host metal3.BareMetalHost
	err := target.cluster.Get(ctx, key, &host)
	switch {
	case apierrors.IsNotFound(err):
		return failing(checkHost, fmt.Errorf("reading BareMetalHost %s: %w; give -n NAMESPACE, or an address such as "+
			"redfish://HOST/redfish/v1/Systems/ID or ipmi://HOST", redacted(key.String()), err))
	case apierrors.IsForbidden(err):
		return failing(checkHost, fmt.Errorf("reading BareMetalHost %s: %w; ask for the right to get baremetalhosts.metal3.io "+
			"in namespace %s, or give the BMC's address", key, err, key.Namespace))
	case err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown:
		return failing(checkCluster, fmt.Errorf("reading BareMetalHost %s: %w; see --server and --context, or give the BMC's address "+
			"and --credentials-file, which need no API server", key, err))
	case err != nil:
		return failing(checkHost, fmt.Errorf("reading BareMetalHost %s: %w", key, err))
	case host.Spec.BMC.Address == "":
		return failing(checkHost, fmt.Errorf("BareMetalHost %s: %w; set spec.bmc.address", key, errNoBMC))
	}
	target.host = &host
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
