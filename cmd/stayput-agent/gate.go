package main

import (
	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/health"
	"github.com/stayput-dev/stayput/agent/slots/dps"
)

func newBootGateCommand(path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "boot-gate",
		Short: "Decide whether this trial boot is good; reboot into the known-good slot when it is not",
		Long: "Decide whether this trial boot is good. It is run by stayput-boot-gate.service. In a boot that is not on trial it\n" +
			"ends at once and changes nothing.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := newLog()

			settings, err := config.Load(*path)
			if err != nil {
				// The gate must decide even when the configuration is damaged.
				log.Error(err, "going on with the default configuration")

				settings = config.Default()
			}

			system := boot.System{}
			node := health.KubeconfigNode{Kubeconfig: settings.Kubeconfig, Name: settings.NodeName}

			_, err = health.RunGate(cmd.Context(), health.Deps{
				StateDir: settings.StateDir, System: system, Variables: boot.NewVariables(""),
				Scheme: dps.New(dps.Options{StateDir: settings.StateDir}), Rebooter: boot.Logind{}, Log: log,
				Gates: []health.Gate{
					health.APIServer{Node: node},
					health.ContainerRuntime{Socket: settings.ContainerRuntime.Socket},
					health.Kubelet{Healthz: settings.Kubelet.Healthz},
					health.NodeReady{Node: node, System: system},
				},
			})

			return err
		},
	}
}
