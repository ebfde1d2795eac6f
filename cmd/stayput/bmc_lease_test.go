package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/powerlease"
)

// leasesOf keeps Leases in a cluster, as an API server does: a write of what was read too long ago is a conflict.
type leasesOf struct{ cluster client.Client }

func (l leasesOf) Leases(namespace string) coordinationclient.LeaseInterface {
	return namespaceLeases{cluster: l.cluster, namespace: namespace}
}

type namespaceLeases struct {
	coordinationclient.LeaseInterface

	cluster   client.Client
	namespace string
}

func (l namespaceLeases) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}

	return lease, l.cluster.Get(ctx, types.NamespacedName{Namespace: l.namespace, Name: name}, lease)
}

func (l namespaceLeases) List(ctx context.Context, _ metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	list := &coordinationv1.LeaseList{}

	return list, l.cluster.List(ctx, list, client.InNamespace(l.namespace))
}

func (l namespaceLeases) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()

	return lease, l.cluster.Create(ctx, lease)
}

func (l namespaceLeases) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	lease = lease.DeepCopy()

	return lease, l.cluster.Update(ctx, lease)
}

// obedientMachine follows at once, and tells what it is about to do.
type obedientMachine struct {
	power bmc.Power
	boot  bmc.Boot
	image string
	acted func()
}

func (*obedientMachine) Identity(context.Context) (bmc.Identity, error) {
	return bmc.Identity{Serial: "1"}, nil
}

func (m *obedientMachine) Power(context.Context) (bmc.Power, error) { return m.power, nil }

func (*obedientMachine) Actions(context.Context) ([]bmc.Action, error) {
	return []bmc.Action{bmc.ActionOn, bmc.ActionForceOff}, nil
}

func (m *obedientMachine) Do(_ context.Context, action bmc.Action) error {
	m.acted()
	m.power = map[bmc.Action]bmc.Power{bmc.ActionOn: bmc.PowerOn, bmc.ActionForceOff: bmc.PowerOff}[action]

	return nil
}

func (m *obedientMachine) Boot(context.Context) (bmc.BootState, error) {
	return bmc.BootState{Boot: m.boot}, nil
}

func (m *obedientMachine) SetBoot(_ context.Context, boot bmc.Boot) error {
	m.acted()
	m.boot = boot

	return nil
}

func (m *obedientMachine) Media(context.Context) ([]bmc.MediaSlot, error) {
	return []bmc.MediaSlot{{ID: "Cd", Insertable: true, Inserted: m.image != "", Image: m.image}}, nil
}

func (m *obedientMachine) Insert(_ context.Context, _, url string) error {
	m.acted()
	m.image = url

	return nil
}

func (m *obedientMachine) Eject(context.Context, string) error {
	m.acted()
	m.image = ""

	return nil
}

func (*obedientMachine) Log(context.Context, int) ([]bmc.LogEntry, error) { return nil, nil }

func (*obedientMachine) Close(context.Context) error { return nil }

const obedientAddress = "redfish://10.0.0.1/redfish/v1/Systems/1"

// obedientBench has such a machine; acts holds who held the lease at each act, "" for nobody.
func obedientBench(t *testing.T) (b *bmcBench, acts *[]string) {
	t.Helper()
	b, acts = newBMCBench(t, obedientAddress, bmcPassword), &[]string{}
	machine := &obedientMachine{power: bmc.PowerOn, acted: func() { *acts = append(*acts, b.holder()) }}
	b.open = func(context.Context, bmc.Options) (bmc.Machine, error) { return machine, nil }

	return b, acts
}

// holder is who holds the lease of host-1, "" for nobody.
func (b *bmcBench) holder() string {
	b.Helper()
	lease, err := b.leases.Leases("metal").Get(b.Context(), powerlease.Name("host-1"), metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}

	return *lease.Spec.HolderIdentity
}

// others is another actor.
func (b *bmcBench) others() *powerlease.Leases {
	b.Helper()
	leases, err := powerlease.New(powerlease.Options{Leases: b.leases, Holder: "stayput-controller/one"})
	if err != nil {
		b.Fatal(err)
	}

	return leases
}

func TestBMCActsHoldTheHostsLease(t *testing.T) {
	t.Parallel()
	b, acts := obedientBench(t)
	for _, args := range [][]string{
		{"power", "host-1", "off"},
		{"power", "metal/host-1", "on"},
		{"reset", "host-1", "--cycle"},
		{"boot", "host-1", "pxe"},
		{"media", "host-1", "insert", "http://h/i.iso"},
		{"media", "host-1", "eject"},
	} {
		*acts = nil
		if _, said, err := b.run(args...); err != nil || len(*acts) == 0 {
			t.Errorf("%v: %s%v, %d acts", args, said, err, len(*acts))
		}
		for _, by := range *acts {
			if !strings.HasPrefix(by, "stayput bmc of ") {
				t.Errorf("%v: the lease was held by %q", args, by)
			}
		}
		if by := b.holder(); by != "" {
			t.Errorf("%v: the lease is kept by %q", args, by)
		}
	}
}

// Reading takes none, and an address has none.
func TestBMCTakesNoLeaseInVain(t *testing.T) {
	t.Parallel()
	b, acts := obedientBench(t)
	for _, args := range [][]string{
		{"status", "host-1"},
		{"identify", "host-1"},
		{"boot", "host-1"},
		{"boot", "host-1", "pxe", "--dry-run"},
		{"media", "host-1"},
		{"media", "host-1", "insert", "http://h/i.iso", "--dry-run"},
		{"power", "host-1", "off", "--dry-run"},
		{"reset", "host-1", "--dry-run"},
		{"log", "host-1"},
		{"doctor", "host-1"},
		{"power", obedientAddress, "off", "--credentials-file", b.path("credentials.yaml")},
	} {
		if _, said, err := b.run(args...); err != nil {
			t.Errorf("%v: %s%v", args, said, err)
		}
	}
	if len(*acts) != 1 || (*acts)[0] != "" {
		t.Errorf("acts: %q", *acts)
	}
	if list, err := b.leases.Leases("metal").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("leases: %+v, %v", list, err)
	}
}

func TestBMCWaitsForWhoHoldsTheLease(t *testing.T) {
	t.Parallel()
	key := types.NamespacedName{Namespace: "metal", Name: "host-1"}
	for name, tt := range map[string]struct {
		args []string
		// meanwhile is what the other one does before it gives the lease back, which it does only then.
		meanwhile func(t *testing.T, b *bmcBench)
		fails     string
	}{
		"until it is given back": {
			args: []string{"power", "host-1", "off"}, meanwhile: func(*testing.T, *bmcBench) {},
		},
		"and looks at the host again": {
			args: []string{"power", "host-1", "off"}, fails: "changed while this command waited",
			meanwhile: func(t *testing.T, b *bmcBench) {
				t.Helper()
				var host metal3.BareMetalHost
				err := b.cluster.Get(t.Context(), key, &host)
				host.Generation++
				if err := errors.Join(err, b.cluster.Update(t.Context(), &host)); err != nil {
					t.Error(err)
				}
			},
		},
		"for --timeout": {
			args: []string{"power", "host-1", "off", "--timeout", "50ms"}, fails: "raise --timeout",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, acts := obedientBench(t)
			held, give := make(chan struct{}), make(chan struct{})
			gave := make(chan error, 1)
			go func() {
				gave <- b.others().Do(context.WithoutCancel(t.Context()), key, "u-1", func(context.Context) error {
					close(held)
					<-give

					return nil
				})
			}()
			select {
			case <-held:
			case err := <-gave:
				t.Fatal(err)
			}
			b.hears = func(said string) {
				if tt.meanwhile != nil && strings.Contains(said, "waiting for") {
					tt.meanwhile(t, b)
					close(give)
				}
			}
			_, said, err := b.run(tt.args...)
			if tt.meanwhile == nil {
				close(give)
			}
			if other := <-gave; other != nil {
				t.Error(other)
			}
			if !strings.Contains(said, "Host metal/host-1 is in use by stayput-controller/one, waiting for up to") {
				t.Errorf("said %q", said)
			}
			acted := len(*acts) == 1
			if tt.fails == "" && (err != nil || !acted) || tt.fails != "" && (err == nil || !strings.Contains(err.Error(), tt.fails) || acted) {
				t.Errorf("got %v, acts %q, want %q", err, *acts, tt.fails)
			}
		})
	}
}

// Nothing is sent by a machine whose lease is not held.
func TestLeasedMachineAsksBeforeEachAct(t *testing.T) {
	t.Parallel()
	machine := leasedMachine{&obedientMachine{power: bmc.PowerOn, acted: func() { t.Error("it acted") }}}
	for name, err := range map[string]error{
		"do":     machine.Do(t.Context(), bmc.ActionForceOff),
		"boot":   machine.SetBoot(t.Context(), bmc.Boot{Target: bmc.BootPXE}),
		"insert": machine.Insert(t.Context(), "Cd", "http://h/i.iso"),
		"eject":  machine.Eject(t.Context(), "Cd"),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
