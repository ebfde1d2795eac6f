package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/test/lab/controlplane"
	"github.com/stayput-dev/stayput/test/lab/machine"
	"github.com/stayput-dev/stayput/test/lab/process"
	"github.com/stayput-dev/stayput/test/lab/redfish"
	"github.com/stayput-dev/stayput/test/lab/registry"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	dirMode  = 0o700
	fileMode = 0o600

	clusterDir    = "cluster"
	managementDir = "management"
	registryDir   = "registry"
	bmcDir        = "bmc"
	machinesDir   = "machines"
	stateFile     = "lab.json"

	stopGrace = 10 * time.Second
)

// Options say what lab to bring up.
type Options struct {
	// ID tells labs on one machine apart: lower-case letters and digits.
	ID string
	// Dir holds everything of this lab.
	Dir string
	// Management gives the BareMetalHosts and HostPools a cluster of their own.
	Management bool
	// Audit keeps the audit log of the cluster of the Nodes.
	Audit bool
	// Agent is the program of the node agent, which goes onto every machine; "" for machines without one.
	Agent string
	// Report receives a line for each step.
	Report tools.Report
}

// Lab is a lab that runs.
type Lab struct {
	dir    string
	root   string // of the repository
	state  state
	report tools.Report

	// Cluster is where the Nodes live, Management where the BareMetalHosts do: the same one unless Options.Management.
	Cluster, Management *controlplane.Cluster
	// Registry holds the images.
	Registry *registry.Registry
	// Libvirt holds the machines.
	Libvirt *machine.Libvirt
	// BMC is the Redfish emulator; nil in a lab that was opened, though it runs there, too.
	BMC *redfish.Emulator
	// Client reads and writes the Nodes' cluster, ManagementClient the other, as the administrator, without a cache.
	Client, ManagementClient client.Client
}

// state is what a later command needs to find the lab again.
type state struct {
	ID           string               `json:"id"`
	Agent        string               `json:"agent"`
	Management   bool                 `json:"management"`
	Acceleration machine.Acceleration `json:"acceleration"`
	Key          machine.Key          `json:"key"`
	BMCPassword  string               `json:"bmcPassword"`
	StartedAt    time.Time            `json:"startedAt"`
}

// Start brings up the control plane with the custom resources, the registry and libvirt. On an error everything that
// was started is stopped again; the directory stays, for its logs.
func Start(ctx context.Context, options Options) (*Lab, error) {
	root, err := tools.RepositoryRoot()
	if err != nil {
		return nil, err
	}

	lab := &Lab{dir: options.Dir, root: root, report: options.Report, state: state{
		ID: options.ID, Agent: options.Agent, Management: options.Management, StartedAt: time.Now(),
	}}

	if err := lab.start(ctx, options); err != nil {
		return nil, errors.Join(err, stop(context.WithoutCancel(ctx), options.Dir, options.ID))
	}

	return lab, nil
}

func (l *Lab) start(ctx context.Context, options Options) error {
	if err := os.MkdirAll(l.dir, dirMode); err != nil {
		return fmt.Errorf("making the lab's directory: %w", err)
	}

	cache, err := tools.CacheDir()
	if err != nil {
		return err
	}

	if err := prune(cache, time.Now()); err != nil {
		return err
	}

	var programs string

	return l.steps(ctx, []step{
		{"Kubernetes programs", func(ctx context.Context) (err error) {
			programs, err = tools.Ensure(ctx, l.root, tools.Kubernetes(), l.report)

			return err
		}},
		{"control plane", func(ctx context.Context) (err error) {
			l.Cluster, err = controlplane.Start(ctx, controlplane.Options{
				Dir: l.path(clusterDir), Programs: programs, Audit: options.Audit,
			})
			if err != nil || !l.state.Management {
				l.Management = l.Cluster

				return err
			}

			l.Management, err = controlplane.Start(ctx, controlplane.Options{Dir: l.path(managementDir), Programs: programs})

			return err
		}},
		{"custom resources", l.installResources},
		{"registry", func(ctx context.Context) (err error) {
			l.Registry, err = registry.Start(ctx, registry.Options{Dir: l.path(registryDir), CA: l.Cluster.CA()})

			return err
		}},
		{"image of the pods", l.pushPodImage},
		{"libvirt", l.connectLibvirt},
		{"BMC emulator", l.startBMC},
		{"state", func(context.Context) error { return l.save() }},
	})
}

// Open finds a lab that Start brought up earlier. libvirtd is started again when it is gone.
func Open(ctx context.Context, dir string, report tools.Report) (*Lab, error) {
	lab := &Lab{dir: dir, report: report}

	data, err := os.ReadFile(lab.path(stateFile))
	if err != nil {
		return nil, fmt.Errorf("finding the lab: %w; bring it up first", err)
	}

	if err := json.Unmarshal(data, &lab.state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", lab.path(stateFile), err)
	}

	if lab.root, err = tools.RepositoryRoot(); err != nil {
		return nil, err
	}

	if lab.Cluster, err = controlplane.Open(lab.path(clusterDir)); err != nil {
		return nil, err
	}

	lab.Management = lab.Cluster
	if lab.state.Management {
		if lab.Management, err = controlplane.Open(lab.path(managementDir)); err != nil {
			return nil, err
		}
	}

	if lab.Registry, err = registry.Open(lab.path(registryDir)); err != nil {
		return nil, err
	}

	if err := lab.makeClients(); err != nil {
		return nil, err
	}

	shared, err := machine.SharedDir()
	if err != nil {
		return nil, err
	}

	lab.Libvirt, err = machine.ConnectLibvirt(ctx, shared)

	return lab, err
}

// Down takes the lab away: processes, machines, directory. It works on what is left of a lab that was never finished
// or crashed, and on none at all.
func Down(ctx context.Context, dir, id string) error {
	if err := stop(ctx, dir, id); err != nil {
		return err
	}

	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("removing the lab's directory: %w", err)
	}

	return nil
}

// stop ends everything of the lab that runs.
func stop(ctx context.Context, dir, id string) error {
	var errs []error

	shared, err := machine.SharedDir()
	if err != nil {
		return err
	}

	if dirExists(filepath.Join(dir, machinesDir)) {
		errs = append(errs, removeMachines(ctx, shared, id))
	}

	errs = append(errs, stopBMC(ctx, filepath.Join(dir, bmcDir)))

	for _, part := range []string{controllerDir, registryDir, managementDir, clusterDir} {
		processes, err := process.All(filepath.Join(dir, part))
		errs = append(errs, err)

		for _, running := range processes {
			errs = append(errs, running.Stop(ctx, stopGrace))
		}
	}

	return errors.Join(append(errs, machine.ReleaseLibvirt(ctx, shared))...)
}

func removeMachines(ctx context.Context, shared, id string) error {
	libvirt, err := machine.ConnectLibvirt(ctx, shared)
	if err != nil {
		return err
	}

	domains, err := libvirt.Domains(ctx)
	if err != nil {
		return err
	}

	var errs []error

	for _, domain := range domains {
		if strings.HasPrefix(domain, domainPrefix(id)) {
			errs = append(errs, libvirt.Remove(ctx, domain))
		}
	}

	return errors.Join(errs...)
}

func (l *Lab) connectLibvirt(ctx context.Context) error {
	shared, err := machine.SharedDir()
	if err != nil {
		return err
	}

	if l.Libvirt, err = machine.ConnectLibvirt(ctx, shared); err != nil {
		return err
	}

	if l.state.Acceleration, err = machine.Detect(ctx); err != nil {
		return err
	}

	if l.state.Acceleration == machine.Emulation {
		l.report("KVM does not work here: the machines are emulated, about ten times slower")
	}

	l.state.Key, err = machine.NewKey()

	return err
}

// installResources installs what an operator does: Metal3's custom resources and config/default in the cluster of the
// hosts, and config/nodes in that of the Nodes when it is another one.
func (l *Lab) installResources(ctx context.Context) error {
	metal3, err := tools.CRDs(ctx, l.root, "metal3")
	if err != nil {
		return err
	}

	group, grouped := errgroup.WithContext(ctx)

	group.Go(func() error { return l.installHome(grouped, metal3) })

	if l.state.Management {
		group.Go(func() error { return l.installInto(grouped, l.Cluster, filepath.Join(l.root, "config", "nodes")) })
	}

	if err := group.Wait(); err != nil {
		return err //nolint:wrapcheck // of this package
	}

	return l.makeClients()
}

// installHome installs into the cluster of the hosts.
func (l *Lab) installHome(ctx context.Context, metal3 string) error {
	if err := l.installInto(ctx, l.Management, metal3, filepath.Join(l.root, "config", "default")); err != nil {
		return err
	}

	// The controller runs on the host, from this working copy; see StartController. No node is there yet, so its pods
	// never began.
	_, err := l.Management.Kubectl(ctx, nil, "scale", "deployment", "--all", "--replicas=0", "--namespace="+controllerNamespace)
	if err != nil {
		return fmt.Errorf("keeping the controller out of the cluster: %w", err)
	}

	return nil
}

func (l *Lab) installInto(ctx context.Context, cluster *controlplane.Cluster, folders ...string) error {
	for _, folder := range folders {
		if err := cluster.ApplyFolder(ctx, folder); err != nil {
			return fmt.Errorf("installing %s: %w", folder, err)
		}
	}

	return cluster.WaitEstablished(ctx)
}

func (l *Lab) makeClients() error {
	var err error
	if l.Client, err = adminClient(l.Cluster); err != nil {
		return err
	}

	l.ManagementClient, err = adminClient(l.Management)

	return err
}

func adminClient(cluster *controlplane.Cluster) (client.Client, error) {
	config, err := cluster.Admin()
	if err != nil {
		return nil, err
	}

	return NewClient(config)
}

// NewClient is a client that knows every kind of the lab, without a cache and without a limit on requests.
func NewClient(config *rest.Config) (client.Client, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}

	unlimited := rest.CopyConfig(config)
	unlimited.QPS = -1

	direct, err := client.New(unlimited, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}

	return direct, nil
}

func (l *Lab) save() error {
	data, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the lab's state: %w", err)
	}

	if err := renameio.WriteFile(l.path(stateFile), data, fileMode); err != nil {
		return fmt.Errorf("writing the lab's state: %w", err)
	}

	return nil
}

// Dir is the lab's directory.
func (l *Lab) Dir() string { return l.dir }

// StartedAt is when the lab was brought up.
func (l *Lab) StartedAt() time.Time { return l.state.StartedAt }

// Accelerated tells whether the machines run under KVM.
func (l *Lab) Accelerated() bool { return l.state.Acceleration == machine.KVM }

func (l *Lab) path(elements ...string) string {
	return filepath.Join(append([]string{l.dir}, elements...)...)
}

// domainPrefix is what the names of the lab's libvirt domains begin with.
func domainPrefix(id string) string { return "stayput-" + id + "-" }

func dirExists(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.IsDir()
}
