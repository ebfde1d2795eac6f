package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/agent"
	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/journal"
	"github.com/stayput-dev/stayput/agent/slots/dps"
)

func newStatusCommand(path *string) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Print what this node knows of its slots and its attempt, without the API server",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := config.Load(*path)
			if err != nil {
				return err
			}

			scheme := dps.New(dps.Options{StateDir: settings.StateDir})
			machine := agent.NewHost(settings.StateDir, settings.Kubeconfig, scheme)
			summary := agent.Summarise(cmd.Context(), machine, scheme, journal.Open(settings.StateDir))

			encoder := json.NewEncoder(cmd.OutOrStdout())
			encoder.SetIndent("", "  ")

			if err := encoder.Encode(summary); err != nil { //nolint:musttag // The parts without tags are for people.
				return fmt.Errorf("printing the status: %w", err)
			}

			return nil
		},
	}
}
