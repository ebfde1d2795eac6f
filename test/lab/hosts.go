package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/ports"
)

const (
	// Namespace holds the BareMetalHosts, their Secrets and the HostPools.
	Namespace = "metal"
	// PoolLabel is on every BareMetalHost, with the value PoolValue.
	PoolLabel = "stayput.dev/lab-pool"
	// PoolValue is the value of PoolLabel.
	PoolValue = "lab"
	// NodeLabel is on every BareMetalHost, with the name of its Node as value, for pools of single machines.
	NodeLabel = "stayput.dev/lab-node"

	pollInterval = 500 * time.Millisecond
)

// ErrNoNode means that the lab has no machine for a node of that name.
var ErrNoNode = errors.New("the lab has no such node")

// Scheme knows the kinds of Kubernetes, Metal3 and Stayput.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubescheme.AddToScheme, v1alpha1.AddToScheme, metal3.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}

	return scheme, nil
}

// MachineSpec says what machine to add.
type MachineSpec struct {
	// Node is the name of its Node.
	Node string
	// Disk is the raw image that it starts from; DiskSize what its disk grows to, 0 for the image's size.
	Disk     string
	DiskSize int64
}

// Host is a machine with its BareMetalHost.
type Host struct {
	// Node is the Node's name, Name the BareMetalHost's, in Namespace of the management cluster.
	Node, Name string
	// ProviderID is that of the Node.
	ProviderID string
	// Machine is the machine.
	Machine *machine.Machine
}

// ErrOpened means that a lab was opened, not started, by this process, which therefore cannot add to it.
var ErrOpened = errors.New("machines are added by the process that started the lab")

// AddMachine makes a BareMetalHost as Metal3 leaves it when it has provisioned one, and the machine, which is off.
func (l *Lab) AddMachine(ctx context.Context, spec MachineSpec) (*Host, error) {
	if l.BMC == nil {
		return nil, ErrOpened
	}

	nodes, err := l.Nodes()
	if err != nil {
		return nil, err
	}

	index := len(nodes)
	host := &Host{Node: spec.Node, Name: HostName(spec.Node)}

	bmh, err := l.createHost(ctx, host.Name, spec.Node)
	if err != nil {
		return nil, fmt.Errorf("making the BareMetalHost of %s: %w", spec.Node, err)
	}

	host.ProviderID = providerID(bmh, index)

	port, err := new(ports.Allocator).Next()
	if err != nil {
		return nil, err
	}

	files, err := l.guestFiles(ctx, spec.Node, host.ProviderID, machine.AddressOf(index))
	if err != nil {
		return nil, err
	}

	host.Machine, err = l.Libvirt.Create(ctx, machine.Spec{
		Name: spec.Node, Domain: domainPrefix(l.state.ID) + spec.Node, Dir: l.path(machinesDir, spec.Node), Index: index,
		Disk: spec.Disk, DiskSize: spec.DiskSize, Files: files, SSHPort: port, Key: l.state.Key,
		Acceleration: l.state.Acceleration,
	})
	if err != nil {
		return nil, err
	}

	return host, l.finishHost(ctx, bmh, host)
}

// HostName is the name of the BareMetalHost of a node, in Namespace of the management cluster.
func HostName(node string) string { return "host-" + node }

// providerID is in one of the two forms in use (cluster-api-provider-metal3, type comment of spec.providerID): machines
// take turns, so that both are tried.
func providerID(bmh *metal3.BareMetalHost, index int) string {
	if index%2 == 1 {
		return "metal3://" + string(bmh.UID)
	}

	return fmt.Sprintf("metal3://%s/%s/machine-%s", bmh.Namespace, bmh.Name, bmh.Name)
}

func (l *Lab) createHost(ctx context.Context, name, node string) (*metal3.BareMetalHost, error) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := l.ManagementClient.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("making namespace %s: %w", Namespace, err)
	}

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: name + "-bmc",
			Labels: map[string]string{"environment.metal3.io": "baremetal"}, // as the baremetal-operator does
		},
		StringData: map[string]string{"username": bmcUser, "password": l.state.BMCPassword},
	}
	if err := l.ManagementClient.Create(ctx, secret); err != nil {
		return nil, fmt.Errorf("making the BMC's Secret: %w", err)
	}

	bmh := &metal3.BareMetalHost{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Name: name, Labels: map[string]string{PoolLabel: PoolValue, NodeLabel: node},
		},
		Spec: metal3.BareMetalHostSpec{
			Online:   true,
			BootMode: metal3.UEFI,
			BMC:      metal3.BMCDetails{CredentialsName: secret.Name, DisableCertificateVerification: true},
			Image:    &metal3.Image{URL: "http://images.lab/os.raw", DiskFormat: new("raw")},
		},
	}
	if err := l.ManagementClient.Create(ctx, bmh); err != nil {
		return nil, fmt.Errorf("making the BareMetalHost: %w", err)
	}

	return bmh, nil
}

// finishHost adds what is known once the machine is there, and the status of a provisioned host.
func (l *Lab) finishHost(ctx context.Context, bmh *metal3.BareMetalHost, host *Host) error {
	before := bmh.DeepCopy()
	bmh.Spec.BootMACAddress = host.Machine.MAC()

	bmh.Spec.BMC.Address = l.BMC.Address(host.Machine.UUID())

	if err := l.ManagementClient.Patch(ctx, bmh, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("completing the BareMetalHost of %s: %w", host.Node, err)
	}

	bmh.Status = metal3.BareMetalHostStatus{
		OperationalStatus: metal3.OperationalStatusOK,
		PoweredOn:         true,
		Provisioning: metal3.ProvisionStatus{
			State: metal3.StateProvisioned, ID: host.Machine.UUID(), BootMode: metal3.UEFI, Image: *bmh.Spec.Image,
		},
		HardwareDetails: &metal3.HardwareDetails{Hostname: host.Node},
	}

	if err := l.ManagementClient.Status().Update(ctx, bmh); err != nil {
		return fmt.Errorf("setting the status of the BareMetalHost of %s: %w", host.Node, err)
	}

	return nil
}

// Nodes are the names of the nodes of the lab's machines.
func (l *Lab) Nodes() ([]string, error) {
	entries, err := os.ReadDir(l.path(machinesDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing the lab's machines: %w", err)
	}

	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}

	return names, nil
}

// Machine is the machine of a node.
func (l *Lab) Machine(node string) (*machine.Machine, error) {
	found, err := l.Libvirt.Open(l.path(machinesDir, node))
	if errors.Is(err, os.ErrNotExist) {
		nodes, listErr := l.Nodes()

		return nil, errors.Join(fmt.Errorf("%w: %q; there are: %s", ErrNoNode, node, strings.Join(nodes, ", ")), listErr)
	}

	return found, err
}

// Prioritize puts the lab's machines before what runs beside them; see machine.Prioritize.
func (l *Lab) Prioritize() {
	nodes, err := l.Nodes()
	if err != nil {
		return
	}

	for _, node := range nodes {
		if found, err := l.Machine(node); err == nil {
			found.Prioritize()
		}
	}
}

// WaitNodeReady returns when the Node exists and is Ready.
func (l *Lab) WaitNodeReady(ctx context.Context, name string) error {
	last := "the Node does not exist"

	for {
		l.Prioritize()

		var node corev1.Node

		err := l.Client.Get(ctx, client.ObjectKey{Name: name}, &node)
		switch {
		case err == nil:
			ready, why := Ready(&node)
			if ready {
				return nil
			}

			last = why
		case !apierrors.IsNotFound(err) && ctx.Err() == nil:
			return fmt.Errorf("reading node %s: %w", name, err)
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for node %s to be Ready: %w; last: %s", name, ctx.Err(), last)
		case <-time.After(pollInterval):
		}
	}
}

// Ready tells whether a Node is Ready, and if not, why.
func Ready(node *corev1.Node) (bool, string) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue, condition.Reason + ": " + condition.Message
		}
	}

	return false, "the Node has no condition Ready yet"
}
