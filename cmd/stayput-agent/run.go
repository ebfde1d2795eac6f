package main

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/cluster"
	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/images"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/kubeconfig"
	"github.com/stayput-dev/stayput/agent/memory"
	"github.com/stayput-dev/stayput/agent/slots/dps"
	"github.com/stayput-dev/stayput/cmd/internal/buildinfo"
)

func newRunCommand(path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Run the agent until it is stopped (the default)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := config.Load(*path)
			if err != nil {
				return err
			}

			return run(cmd.Context(), settings, newLog())
		},
	}
}

func run(ctx context.Context, settings config.Config, log logr.Logger) error {
	var downloaded, written atomic.Int64

	scheme := dps.New(dps.Options{StateDir: settings.StateDir, Written: func(bytes int64) { written.Add(bytes) }})
	api := cluster.New(cluster.Options{
		Node: settings.NodeName, Log: log.WithName("cluster"),
		Config: func() (*rest.Config, error) { return kubeconfig.Load(settings.Kubeconfig) },
	})
	engine := agent.New(agent.Options{
		Version: buildinfo.Version,
		Machine: agent.NewHost(settings.StateDir, settings.Kubeconfig, scheme), Scheme: scheme, Cluster: api, Log: log,
		Images: &images.Images{
			Settings: settings, Log: log.WithName("images"), Count: func(bytes int64) { downloaded.Add(bytes) },
		},
		Store: journal.Open(settings.StateDir), Notifier: notifier{log: log},
		Moved: func() (int64, int64) { return downloaded.Load(), written.Load() },
		Rested: func() {
			if err := memory.Release(); err != nil {
				log.V(1).Info("memory that is not needed any more stays", "error", err.Error())
			}
		},
	})

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var group sync.WaitGroup

	group.Go(func() { api.Run(ctx) })

	err := engine.Run(ctx)

	cancel()
	group.Wait()

	return err
}

// notifier speaks to systemd; without one, nobody listens.
type notifier struct{ log logr.Logger }

func (n notifier) Ready()    { n.send(daemon.SdNotifyReady) }
func (n notifier) Stopping() { n.send(daemon.SdNotifyStopping) }

func (n notifier) Alive(status string) {
	n.send(daemon.SdNotifyWatchdog + "\nSTATUS=" + status)
}

func (n notifier) send(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		n.log.Error(err, "systemd cannot be told of the agent's state")
	}
}
