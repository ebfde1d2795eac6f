package bmo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/stayput-dev/stayput/test/lab/process"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	name           = "baremetal-operator"
	kubeconfigMode = 0o600
	// stopGrace is how long it may take to end by itself.
	stopGrace = 10 * time.Second
)

// Options say where it runs.
type Options struct {
	// Kubeconfig is of the API server with the hosts, with all rights.
	Kubeconfig []byte
	// Namespace is the only one that it looks after.
	Namespace string
	// Dir takes its log, its pid file and the kubeconfig.
	Dir string
	// Report says how far a build is.
	Report tools.Report
}

// Operator is a running baremetal-operator.
type Operator struct{ process *process.Process }

// Start starts it; Stop it. The first call builds it, which takes some minutes.
func Start(ctx context.Context, options Options) (*Operator, error) {
	root, err := tools.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	programs, err := tools.Ensure(ctx, root, tools.BareMetalOperator(), options.Report)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(options.Dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, options.Kubeconfig, kubeconfigMode); err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
	}
	running, err := process.Start(options.Dir, process.Spec{
		Name: name, Path: filepath.Join(programs, name),
		Args: []string{
			"--test-mode", "--namespace", options.Namespace, "--webhook-port", "0",
			"--health-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0",
		},
		Env: []string{"KUBECONFIG=" + kubeconfig},
	})
	if err != nil {
		return nil, err
	}

	return &Operator{process: running}, nil
}

// Pause takes the processor from it, as a busy machine may: it sees nothing and does nothing until Resume.
func (o *Operator) Pause() error { return o.signal(syscall.SIGSTOP) }

// Resume lets it go on.
func (o *Operator) Resume() error { return o.signal(syscall.SIGCONT) }

func (o *Operator) signal(signal syscall.Signal) error {
	if !o.process.Alive() {
		return fmt.Errorf("sending %s to %s: %w", signal, name, process.ErrGone)
	}
	if err := syscall.Kill(o.process.PID(), signal); err != nil {
		return fmt.Errorf("sending %s to %s: %w", signal, name, err)
	}

	return nil
}

// Exited is closed when it has ended, by itself or by Stop.
func (o *Operator) Exited() <-chan struct{} { return o.process.Exited() }

// Tail is the end of its log.
func (o *Operator) Tail(lines int) string { return o.process.Tail(lines) }

// Stop ends it, also while it is paused.
func (o *Operator) Stop() error {
	if err := o.Resume(); err != nil && !errors.Is(err, process.ErrGone) {
		return err
	}

	return o.process.Stop(context.Background(), stopGrace)
}
