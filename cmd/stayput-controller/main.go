package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/cmd/internal/buildinfo"
	"github.com/stayput-dev/stayput/controllers/clusters"
	"github.com/stayput-dev/stayput/controllers/outofband"
	"github.com/stayput-dev/stayput/controllers/pool"
)

const (
	leaseName = "controller.stayput.dev"
	// reachTimeout bounds the first question to the API server.
	reachTimeout = 30 * time.Second
)

func main() {
	if err := newCommand().ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:           "stayput-controller",
		Short:         "Update the operating system of physical Kubernetes nodes in place: the controllers",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       buildinfo.Version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			handler := slog.NewJSONHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: o.logLevel})
			logger := logr.FromSlogHandler(handler)
			ctrl.SetLogger(logger)

			return start(cmd.Context(), o, logger)
		},
	}
	command.SetVersionTemplate(buildinfo.String("stayput-controller") + "\n")
	flags := command.Flags()
	flags.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", `address of the Prometheus metrics, "0" for none`)
	flags.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz")
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "let only one of several controllers act at a time")
	flags.StringVar(&o.leaderElectionNamespace, "leader-election-namespace", "",
		"namespace of the Lease; in a cluster the default is the pod's own")
	flags.DurationVar(&o.shutdownTimeout, "shutdown-timeout", 30*time.Second, "how long passes under way may take to end")
	flags.StringVar(&o.bmcCAFile, "bmc-ca-file", "",
		"file of PEM certificates to verify BMCs with, in place of the system's; it is read once, at the start. A BareMetalHost "+
			"may switch verification off (spec.bmc.disableCertificateVerification)")
	flags.IntVar(&o.powerActions, "max-power-actions-per-minute", outofband.DefaultPowerActionsPerMinute,
		"how many power actions are sent to BMCs in a minute, in all, at least 1; further resets of silent machines wait their turn")
	goFlags := flag.NewFlagSet("stayput-controller", flag.ContinueOnError)
	config.RegisterFlags(goFlags) // --kubeconfig
	flags.StringVar(&o.registries.HostsDir, "hosts-dir", "",
		"folder with containerd's hosts.toml files, such as /etc/containerd/certs.d: mirrors of registries are asked first")
	flags.StringVar(&o.registries.Proxy, "proxy", "",
		"URL of a proxy to registries, http://host:port or socks5://host:port; the default is what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say")
	flags.TextVar(&o.logLevel, "log-level", slog.LevelInfo, "least level that is logged: DEBUG, INFO, WARN or ERROR")
	flags.AddGoFlagSet(goFlags)
	command.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version and commit of this program", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildinfo.String("stayput-controller"))

			return err
		},
	})

	return command
}

// start reads what the flags name.
func start(ctx context.Context, o options, logger logr.Logger) error {
	bmcCA, err := readCA(o.bmcCAFile)
	if err != nil {
		return err
	}
	if err := o.check(podNamespaceFile); err != nil {
		return err
	}
	restConfig, err := config.GetConfig()
	if err != nil {
		return fmt.Errorf("finding the cluster (--kubeconfig, KUBECONFIG, or a pod's service account): %w", err)
	}

	return run(ctx, restConfig, o, outofband.Options{BMCCA: bmcCA, PowerActionsPerMinute: o.powerActions}, logger)
}

func run(ctx context.Context, restConfig *rest.Config, o options, silent outofband.Options, logger logr.Logger) error {
	if err := reach(ctx, restConfig); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		kubescheme.AddToScheme, v1alpha1.AddToScheme, metal3.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("registering kinds: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(restConfig, ctrl.Options{
		Scheme: scheme, Logger: logger, Cache: clusters.CacheOptions(scheme),
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.leaderElectionNamespace,
		LeaderElectionReleaseOnCancel: true, // main ends with the manager, so nobody acts after the Lease is given up
		GracefulShutdownTimeout:       &o.shutdownTimeout,
	})
	if err != nil {
		return fmt.Errorf("setting up the manager: %w", err)
	}
	//nolint:contextcheck // sessions with BMCs live as long as the manager, which ends them
	if err := setUp(mgr, o.registries, silent); err != nil {
		return err
	}
	logger.Info("starting", "build", buildinfo.String("stayput-controller"))
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running the controllers: %w", err)
	}

	return nil
}

// reach asks the API server once. What the manager asks when it is set up is bound to no context, so that neither a
// deadline nor a signal would end a start beside a server that accepts connections and says nothing.
func reach(ctx context.Context, restConfig *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	probe, err := discovery.NewDiscoveryClientForConfig(restConfig)
	if err == nil {
		_, err = probe.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	}
	if err == nil || apierrors.IsForbidden(err) { // who may not see the version was answered, too
		return nil
	}

	return fmt.Errorf("asking the API server %s: %w; see that it runs, and --kubeconfig", restConfig.Host, err)
}

func setUp(mgr ctrl.Manager, registries pool.Registries, silent outofband.Options) error {
	registry, err := clusters.New(mgr, clusters.Options{})
	if err != nil {
		return fmt.Errorf("setting up the connections to clusters: %w", err)
	}
	if err := mgr.Add(registry); err != nil {
		return fmt.Errorf("setting up the connections to clusters: %w", err)
	}
	if err := pool.SetupWithManager(mgr, registry, registries); err != nil {
		return fmt.Errorf("setting up the controller of HostPools: %w", err)
	}
	if err := outofband.SetupWithManager(mgr, registry, silent); err != nil {
		return fmt.Errorf("setting up the controller of silent machines: %w", err)
	}
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("setting up /healthz: %w", err)
	}
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("setting up /readyz: %w", err)
	}

	return nil
}
