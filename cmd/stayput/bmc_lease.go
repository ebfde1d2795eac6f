package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

var (
	errHostInUse   = errors.New("the host was in use for too long; try again, or raise --timeout")
	errActedOn     = errors.New("nothing was sent")
	errHostChanged = errors.New("it was changed while this command waited for it; look at it, and try again")
)

// leases makes a client for Leases, as connect makes one for all else.
func (f *rolloutFlags) leases() (coordinationclient.LeasesGetter, error) {
	config, err := f.kube.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w; see --kubeconfig, --context and $KUBECONFIG", err)
	}

	return powerlease.Client(config)
}

// acting is with for what changes something: the power lease of the host is held meanwhile, so that neither the
// controllers nor another command act beside it. A BMC that is given by its address has no lease. It does not end with the
// command's context, but as its conclusion decides.
func (f *bmcFlags) acting(
	cmd *cobra.Command, name string, use func(ctx context.Context, target bmcTarget, machine bmc.Machine) error,
) error {
	target, err := f.find(cmd.Context(), cmd.ErrOrStderr(), name)
	if err != nil {
		return err
	}
	ctx, end, stop := f.conclude(cmd)
	defer stop()
	opened := func(ctx context.Context) error {
		return f.opened(ctx, cmd.ErrOrStderr(), target, func(ctx context.Context, target bmcTarget, machine bmc.Machine) error {
			if target.host != nil {
				machine = leasedMachine{machine}
			}
			if f.restarts {
				machine = owingMachine{machine, end}
			}

			return use(ctx, target, machine)
		})
	}
	if target.host == nil {
		err = opened(ctx)
	} else {
		err = f.leased(ctx, cmd.ErrOrStderr(), target, opened)
	}

	return end.explain(err, func() (byName, byAddress string) { return f.onCommands(cmd, target) })
}

// leased waits for the host's power lease, for --timeout, and calls use while it is held.
func (f *bmcFlags) leased(ctx context.Context, out io.Writer, target bmcTarget, use func(ctx context.Context) error) error {
	key := client.ObjectKeyFromObject(target.host)
	getter, err := f.outside.leases(f.cluster)
	if err != nil {
		return err
	}
	other := ""
	leases, err := powerlease.New(powerlease.Options{
		Leases: getter, Holder: holder(),
		Waiting: func(holder string) {
			other = holder
			fmt.Fprintf(out, "Host %s is in use by %s, waiting for up to %s\n", key, holder, f.timeout)
		},
	})
	if err != nil {
		return err
	}
	// The time limit is the waiting's only: what is done with the lease has its own.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(f.timeout, func() { cancel(errHostInUse) })
	defer limit.Stop()

	return leaseAdvice(key, leases.Do(ctx, key, target.host.UID, func(ctx context.Context) error {
		if !limit.Stop() {
			return errHostInUse // its time was up just now
		}
		if other != "" {
			if err := f.stillWanted(ctx, target, key, other); err != nil {
				return err
			}
		}

		return use(ctx)
	}))
}

// leaseAdvice adds what a person can do about the host's lease.
func leaseAdvice(key types.NamespacedName, err error) error {
	switch {
	case errors.Is(err, errHostInUse):
		return fmt.Errorf("%w; when you know that nobody acts on it any more: kubectl delete lease -n %s %s",
			err, key.Namespace, powerlease.Name(key.Name))
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; ask for the rights to get, create and update leases.coordination.k8s.io in namespace %s", err, key.Namespace)
	default:
		return err
	}
}

// stillWanted looks at the host anew: whoever held it may have given it another BMC, or begun to remove it; and what shall
// happen once must not happen because another has done it already. A state of the power can be asked for after all.
func (f *bmcFlags) stillWanted(ctx context.Context, target bmcTarget, key types.NamespacedName, other string) error {
	if err := unchanged(ctx, target, key); err != nil {
		return err
	}
	if f.restarts {
		return fmt.Errorf("BareMetalHost %s: %w: another one (%s) acted on it while this one waited; look at `stayput bmc status %s`, "+
			"and ask again if it is still wanted", key, errActedOn, other, key)
	}

	return nil
}

// unchanged reads the host anew: whoever held it may have given it another BMC, or begun to remove it.
func unchanged(ctx context.Context, target bmcTarget, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var now metal3.BareMetalHost
	if err := target.cluster.Get(ctx, key, &now); err != nil {
		return fmt.Errorf("reading BareMetalHost %s: %w", key, err)
	}
	if now.UID != target.host.UID || now.Generation != target.host.Generation || now.DeletionTimestamp != nil {
		return fmt.Errorf("BareMetalHost %s: %w", key, errHostChanged)
	}

	return nil
}

// holder tells those who wait whom to ask.
func holder() string {
	name := strconv.Itoa(os.Getuid())
	if current, err := user.Current(); err == nil {
		name = current.Username
	}
	machine, err := os.Hostname()
	if err != nil {
		machine = "an unnamed machine"
	}

	return fmt.Sprintf("stayput bmc of %s@%s", name, machine)
}

// leasedMachine sends nothing that changes something once the lease cannot be proven held.
type leasedMachine struct{ bmc.Machine }

func (m leasedMachine) Do(ctx context.Context, action bmc.Action) error {
	if err := powerlease.Check(ctx); err != nil {
		return err
	}

	return m.Machine.Do(ctx, action)
}

func (m leasedMachine) SetBoot(ctx context.Context, boot bmc.Boot) error {
	if err := powerlease.Check(ctx); err != nil {
		return err
	}

	return m.Machine.SetBoot(ctx, boot)
}

func (m leasedMachine) Insert(ctx context.Context, slot, url string) error {
	if err := powerlease.Check(ctx); err != nil {
		return err
	}

	return m.Machine.Insert(ctx, slot, url)
}

func (m leasedMachine) Eject(ctx context.Context, slot string) error {
	if err := powerlease.Check(ctx); err != nil {
		return err
	}

	return m.Machine.Eject(ctx, slot)
}
