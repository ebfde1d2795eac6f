package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/stayput-dev/stayput/controllers/pool"
	"github.com/stayput-dev/stayput/osimage"
)

// podNamespaceFile is where a pod finds its own namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

var (
	errNotAPod   = errors.New("it is not set, and this is no pod")
	errNoFolder  = errors.New("it is not a folder")
	errNegative  = errors.New("it is negative")
	errNoActions = errors.New("no machine could be reset; use 1 or more, and spec.outOfBand.disabled of a HostPool to forbid power actions")
)

type options struct {
	metricsAddress, probeAddress string
	leaderElect                  bool
	leaderElectionNamespace      string
	shutdownTimeout              time.Duration
	bmcCAFile                    string
	powerActions                 int
	registries                   pool.Registries
	logLevel                     slog.Level
}

// check refuses what the manager would refuse later, or in words that name no flag. It does not look whether a port is
// taken.
func (o options) check(podNamespace string) error {
	for flag, address := range map[string]string{
		"--metrics-bind-address": o.metricsAddress, "--health-probe-bind-address": o.probeAddress,
	} {
		if address == "0" || address == "" {
			continue // none
		}
		if _, err := net.ResolveTCPAddr("tcp", address); err != nil {
			return fmt.Errorf("%s %q: %w; use :PORT or HOST:PORT, or 0 for none", flag, address, err)
		}
	}
	if o.shutdownTimeout < 0 {
		return fmt.Errorf("--shutdown-timeout %s: %w; use 0s or more", o.shutdownTimeout, errNegative)
	}
	if o.powerActions < 1 {
		return fmt.Errorf("--max-power-actions-per-minute %d: %w", o.powerActions, errNoActions)
	}
	if info, err := os.Stat(o.registries.HostsDir); o.registries.HostsDir != "" && (err != nil || !info.IsDir()) {
		return fmt.Errorf("--hosts-dir %s: %w; mount one, or leave the flag out", o.registries.HostsDir, errNoFolder)
	}
	if _, err := osimage.NewClient(osimage.WithProxy(o.registries.Proxy)); err != nil {
		return fmt.Errorf("--proxy: %w", err) // without its value, which may hold a password
	}
	if _, err := os.Stat(podNamespace); err != nil && o.leaderElect && o.leaderElectionNamespace == "" {
		return fmt.Errorf("--leader-election-namespace: %w; name the Lease's namespace, or use --leader-elect=false when no other "+
			"controller runs", errNotAPod)
	}

	return nil
}
