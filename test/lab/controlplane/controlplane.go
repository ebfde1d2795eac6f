package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/stayput-dev/stayput/test/lab/pki"
	"github.com/stayput-dev/stayput/test/lab/ports"
	"github.com/stayput-dev/stayput/test/lab/process"
)

const (
	// GuestHost is the address at which guests of QEMU's user network see the host's 127.0.0.1.
	GuestHost = "10.0.2.2"

	loopback = "127.0.0.1"

	dirMode  = 0o700
	fileMode = 0o600

	// readyWait bounds the start of one component. A busy two-core machine needs half a minute for the API server.
	readyWait = 3 * time.Minute
	// stopGrace is how long a component may take to end by itself.
	stopGrace = 15 * time.Second
)

// Options say what to run.
type Options struct {
	// Dir holds everything of this cluster: keys, data, logs, pid files.
	Dir string
	// Programs is the directory of the Kubernetes programs; see package tools.
	Programs string
	// Audit keeps the API server's audit log (metadata only), which Writes reads. It costs some speed.
	Audit bool
}

// Cluster is a control plane that runs.
type Cluster struct {
	dir      string
	programs string
	state    state
	ca       *pki.Authority
}

// state is what a later command needs to find the cluster again.
type state struct {
	Programs  string           `json:"programs"`
	Ports     map[string]int   `json:"ports"`
	Audit     bool             `json:"audit"`
	StartedAt time.Time        `json:"startedAt"`
	Took      map[string]int64 `json:"tookMilliseconds"`
}

// Ports have these names.
const (
	portEtcd       = "etcd"
	portEtcdPeer   = "etcd-peer"
	portAPIServer  = "kube-apiserver"
	portController = "kube-controller-manager"
	portScheduler  = "kube-scheduler"

	stateFile = "cluster.json"
	caName    = "ca"
)

// Start brings a cluster up and returns when every component is healthy. On an error what was started is stopped.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	cluster := &Cluster{dir: options.Dir, programs: options.Programs}
	cluster.state = state{
		Programs: options.Programs, Audit: options.Audit, StartedAt: time.Now(), Took: map[string]int64{},
	}

	if err := cluster.prepare(); err != nil {
		return nil, err
	}

	if err := cluster.startAll(ctx); err != nil {
		return nil, errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}

	return cluster, cluster.save()
}

// Open finds a cluster that Start brought up earlier. It does not check that it runs; see Healthy.
func Open(dir string) (*Cluster, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's state: %w", err)
	}

	cluster := &Cluster{dir: dir}
	if err := json.Unmarshal(data, &cluster.state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir, stateFile), err)
	}

	cluster.programs = cluster.state.Programs
	cluster.ca, err = pki.Load(cluster.pkiDir(), caName)

	return cluster, err
}

func (c *Cluster) prepare() error {
	if err := os.MkdirAll(c.dir, dirMode); err != nil {
		return fmt.Errorf("making the cluster's directory: %w", err)
	}

	var allocator ports.Allocator

	c.state.Ports = map[string]int{}

	for _, name := range []string{portEtcd, portEtcdPeer, portAPIServer, portController, portScheduler} {
		port, err := allocator.Next()
		if err != nil {
			return err
		}

		c.state.Ports[name] = port
	}

	if err := c.makePKI(); err != nil {
		return err
	}

	return c.save()
}

func (c *Cluster) startAll(ctx context.Context) error {
	for _, component := range []component{c.etcd(), c.apiServer(), c.controllerManager(), c.scheduler()} {
		started := time.Now()

		child, err := process.Start(c.dir, process.Spec{
			Priority: process.Serving,
			Name:     component.name, Path: filepath.Join(c.programs, component.name), Args: component.args,
		})
		if err != nil {
			return err
		}

		if err := component.wait(ctx, child); err != nil {
			return err
		}

		c.state.Took[component.name] = time.Since(started).Milliseconds()
	}

	return nil
}

func (c *Cluster) save() error {
	data, err := json.MarshalIndent(c.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the cluster's state: %w", err)
	}

	if err := renameio.WriteFile(filepath.Join(c.dir, stateFile), data, fileMode); err != nil {
		return fmt.Errorf("writing the cluster's state: %w", err)
	}

	return nil
}

// Stop ends every process of the cluster, newest first. Its directory stays. It is safe to repeat.
func (c *Cluster) Stop(ctx context.Context) error {
	var errs []error

	for _, name := range []string{portScheduler, portController, portAPIServer, portEtcd} {
		child, err := process.Open(c.dir, name)
		if errors.Is(err, process.ErrGone) {
			continue
		}

		if err == nil {
			err = child.Stop(ctx, stopGrace)
		}

		errs = append(errs, err)
	}

	return errors.Join(errs...)
}

// Took is how long each component needed to become healthy.
func (c *Cluster) Took() map[string]time.Duration {
	took := map[string]time.Duration{}
	for name, milliseconds := range c.state.Took {
		took[name] = time.Duration(milliseconds) * time.Millisecond
	}

	return took
}

// Healthy tells whether every component answers, and names the first that does not.
func (c *Cluster) Healthy(ctx context.Context) error {
	for _, component := range []component{c.etcd(), c.apiServer(), c.controllerManager(), c.scheduler()} {
		if err := component.probe(ctx); err != nil {
			return err
		}
	}

	return nil
}

// URL is the API server's address on this host; GuestURL the same for guests.
func (c *Cluster) URL() string { return c.url(loopback) }

// GuestURL is the API server's address inside guests of QEMU's user network.
func (c *Cluster) GuestURL() string { return c.url(GuestHost) }

func (c *Cluster) url(host string) string {
	return "https://" + net.JoinHostPort(host, strconv.Itoa(c.state.Ports[portAPIServer]))
}

// CA is the cluster's certificate authority.
func (c *Cluster) CA() *pki.Authority { return c.ca }

// KubeconfigFile is the administrator's kubeconfig.
func (c *Cluster) KubeconfigFile() string { return filepath.Join(c.dir, "admin.kubeconfig") }

// Admin is the administrator's client configuration.
func (c *Cluster) Admin() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigFile())
	if err != nil {
		return nil, fmt.Errorf("reading the administrator's kubeconfig: %w", err)
	}

	return config, nil
}

// ProgramDir is the directory of the Kubernetes programs.
func (c *Cluster) ProgramDir() string { return c.programs }

// Program is the path of a Kubernetes program, such as "kubectl".
func (c *Cluster) Program(name string) string { return filepath.Join(c.programs, name) }

func (c *Cluster) pkiDir() string { return filepath.Join(c.dir, "pki") }

func (c *Cluster) pkiFile(name string) string { return filepath.Join(c.pkiDir(), name) }
