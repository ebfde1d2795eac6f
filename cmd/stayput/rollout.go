package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/api/statustable"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/controllers/clusters"
)

const (
	// watchInterval is the pause between two tables of --watch.
	watchInterval = 2 * time.Second
	// requestTimeout bounds the reading of one table.
	requestTimeout = 30 * time.Second
	clearScreen    = "\x1b[H\x1b[2J"
	// defaultServer is where client-go looks when nothing is configured.
	defaultServer = "localhost:8080"
)

var (
	errOneOfAll        = errors.New("a name means one pool, and -A all of them")
	errNoKubeconfig    = errors.New("no kubeconfig is found")
	errNothingPoisoned = errors.New("no release is poisoned, so there is nothing to try again")
	errDigestNotFound  = errors.New("the digest is not poisoned")
	errSeveralPoisoned = errors.New("several releases are poisoned and none of them is the pool's present one; name one with --digest")
)

// rolloutFlags say which cluster and which namespace.
type rolloutFlags struct {
	kube          *genericclioptions.ConfigFlags
	allNamespaces bool
}

func newRolloutFlags(command *cobra.Command) *rolloutFlags {
	flags := &rolloutFlags{kube: genericclioptions.NewConfigFlags(true)}
	flags.kube.AddFlags(command.Flags())

	return flags
}

// connect gives a client of the HostPools' cluster, and the namespace.
func (f *rolloutFlags) connect() (client.Client, string, error) {
	config, err := f.kube.ToRESTConfig()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig: %w; see --kubeconfig, --context and $KUBECONFIG", err)
	}
	if err := f.checkKubeconfig(config); err != nil {
		return nil, "", err
	}
	namespace, _, err := f.kube.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("reading the kubeconfig's namespace: %w", err)
	}
	if f.allNamespaces {
		namespace = ""
	}
	scheme, err := rolloutScheme()
	if err != nil {
		return nil, "", err
	}
	connected, err := client.New(config, client.Options{Scheme: scheme, Mapper: rolloutMapper()})
	if err != nil {
		return nil, "", fmt.Errorf("connecting to the cluster: %w", err)
	}

	return connected, namespace, nil
}

// checkKubeconfig refuses to go on without one: client-go would ask localhost:8080, and nobody knows why.
func (f *rolloutFlags) checkKubeconfig(config *rest.Config) error {
	if *f.kube.APIServer != "" || strings.TrimPrefix(config.Host, "http://") != defaultServer {
		return nil
	}
	loader := f.kube.ToRawKubeConfigLoader()
	if raw, err := loader.RawConfig(); err != nil || !clientcmdapi.IsConfigEmpty(&raw) {
		return nil //nolint:nilerr // Reading it again is not what is asked here.
	}

	return fmt.Errorf("%w in %s; name one with --kubeconfig, or set $KUBECONFIG", errNoKubeconfig,
		strings.Join(loader.ConfigAccess().GetLoadingPrecedence(), ", "))
}

// rolloutMapper knows the kinds that are read here. Asking the server for them would bind no context, so that neither a
// deadline nor an interrupt could end it.
func rolloutMapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("HostPool"), meta.RESTScopeNamespace)
	mapper.Add(v1alpha1.GroupVersion.WithKind("NodeUpdate"), meta.RESTScopeRoot)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)
	mapper.Add(metal3.GroupVersion.WithKind("BareMetalHost"), meta.RESTScopeNamespace)

	return mapper
}

// explain adds what to look at to an error of the API server.
func explain(err error) error {
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return fmt.Errorf("%w: this cluster does not know Stayput's objects; choose another one with --context, "+
			"or install Stayput there", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w; `stayput status -A` shows the pools of all namespaces", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: the API server did not answer within %s; see --server and --context", err, requestTimeout)
	default:
		return err
	}
}

func rolloutScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(kubescheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), metal3.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("registering kinds: %w", err)
	}

	return scheme, nil
}

func newStatusCommand() *cobra.Command {
	var watch bool
	command := &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show where the nodes of a pool are",
		Long: `Show where the nodes of a pool are, or those of every pool of the namespace.

For each node: the phase of its attempt, the slot and version that run, the version that is wanted, how far staging is
(by the agent's last write, which comes after each fifth of the work), when the present wait ends, and why it is where
it is. What stands in the way of a node that cannot go on is below the table. Nodes of another cluster are read with the
kubeconfig Secret that the pool names; you need the right to read it.`,
		Args: takes(cobra.MaximumNArgs(1)),
	}
	flags := newRolloutFlags(command)
	command.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every two seconds, until interrupted")
	command.Flags().BoolVarP(&flags.allNamespaces, "all-namespaces", "A", false, "show the pools of all namespaces")
	command.RunE = func(cmd *cobra.Command, args []string) error {
		name := strings.Join(args, "")
		if name != "" && flags.allNamespaces {
			return fmt.Errorf("%w: give -n NAMESPACE for HostPool %s, or -A without a name", errOneOfAll, name)
		}
		connected, namespace, err := flags.connect()
		if err != nil {
			return err
		}
		if !watch {
			return printPools(cmd.Context(), cmd.OutOrStdout(), connected, namespace, name, time.Now())
		}

		return watchPools(cmd.Context(), cmd.OutOrStdout(), connected, namespace, name, clock.RealClock{})
	}

	return command
}

// watchPools prints the table again and again. A cluster that does not answer for a while is shown and asked again.
func watchPools(
	ctx context.Context, out io.Writer, connected client.Client, namespace, name string, ticker clock.WithTicker,
) error {
	ticks := ticker.NewTicker(watchInterval)
	defer ticks.Stop()
	for {
		var table strings.Builder
		if err := printPools(ctx, &table, connected, namespace, name, ticker.Now()); err != nil {
			fmt.Fprintf(&table, "Error: %v\n", err)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err := writeText(out, clearScreen+table.String()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C():
		}
	}
}

// printPools prints a table for each pool. One whose nodes cannot be read has its conditions only, and does not keep the
// others from being shown.
func printPools(
	ctx context.Context, out io.Writer, connected client.Client, namespace, name string, now time.Time,
) error {
	pools, err := readPools(ctx, connected, namespace, name)
	if err != nil {
		return err
	}
	var errs []error
	if len(pools) == 0 {
		return writeText(out, noPools(namespace))
	}
	for i := range pools {
		if i > 0 {
			if err := writeText(out, "\n"); err != nil {
				return err
			}
		}
		if err := printPool(ctx, out, connected, &pools[i], now); err != nil {
			statustable.WriteHeader(out, &pools[i])
			errs = append(errs, err)
		}
	}

	return errors.Join(errs...)
}

func noPools(namespace string) string {
	if namespace == "" {
		return "No HostPools in any namespace.\n"
	}

	return fmt.Sprintf("No HostPools in namespace %q; -A looks in all.\n", namespace)
}

func writeText(out io.Writer, text string) error {
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("writing the output: %w", err)
	}

	return nil
}

func readPools(ctx context.Context, connected client.Client, namespace, name string) ([]v1alpha1.HostPool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if name != "" {
		var pool v1alpha1.HostPool
		if err := connected.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pool); err != nil {
			return nil, fmt.Errorf("reading HostPool %s of namespace %s: %w", name, namespace, explain(err))
		}

		return []v1alpha1.HostPool{pool}, nil
	}
	var list v1alpha1.HostPoolList
	if err := connected.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing HostPools: %w", explain(err))
	}

	return list.Items, nil
}

// nodesCluster gives a client of the cluster where the pool's Nodes live.
func nodesCluster(ctx context.Context, home client.Client, pool *v1alpha1.HostPool) (client.Client, error) {
	key := clusters.KeyOf(pool)
	if key.Local() {
		return home, nil
	}
	var secret corev1.Secret
	if err := home.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: key.Secret}, &secret); err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of HostPool %s: %w", pool.Name, err)
	}
	config, err := clusters.ConfigFromSecret(&secret)
	if err != nil {
		return nil, err
	}
	remote, err := client.New(config, client.Options{Scheme: home.Scheme(), Mapper: rolloutMapper()})
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster of HostPool %s: %w", pool.Name, err)
	}

	return remote, nil
}

func printPool(ctx context.Context, out io.Writer, home client.Client, pool *v1alpha1.HostPool, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	nodes, err := nodesCluster(ctx, home, pool)
	if err != nil {
		return err
	}
	var updates v1alpha1.NodeUpdateList
	if err := nodes.List(ctx, &updates); err != nil {
		return fmt.Errorf("listing the NodeUpdates of HostPool %s: %w", pool.Name, explain(err))
	}

	return statustable.Write(out, pool, updates.Items, now)
}

func newRetryCommand() *cobra.Command {
	var digest string
	command := &cobra.Command{
		Use:   "retry POOL",
		Short: "Try a release again that failed on a node of the pool",
		Long: `Try a release again that failed on a node of the pool.

A release that fails on one node is poisoned for its pool: the rollout halts and no node is offered it again. This lifts
the poison of the pool's present release, or of the one given with --digest. Giving the pool another image also ends the
halt, and leaves the failed one poisoned.`,
		Args: takes(cobra.ExactArgs(1)),
	}
	flags := newRolloutFlags(command)
	command.Flags().StringVar(&digest, "digest", "", `digest of the failed release, "sha256:…"; default the pool's present release`)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		connected, namespace, err := flags.connect()
		if err != nil {
			return err
		}

		return retryPool(cmd.Context(), cmd.OutOrStdout(), connected, types.NamespacedName{Namespace: namespace, Name: args[0]}, digest)
	}

	return command
}

// retryPool asks the controller to lift a poison.
func retryPool(ctx context.Context, out io.Writer, connected client.Client, key types.NamespacedName, digest string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var pool v1alpha1.HostPool
	if err := connected.Get(ctx, key, &pool); err != nil {
		return fmt.Errorf("reading HostPool %s: %w", key, explain(err))
	}
	chosen, err := choosePoisoned(&pool, digest)
	if err != nil {
		return fmt.Errorf("HostPool %s: %w", key, err)
	}
	patched := pool.DeepCopy()
	if patched.Annotations == nil {
		patched.Annotations = map[string]string{}
	}
	patched.Annotations[v1alpha1.AnnotationRetry] = chosen.Digest
	if err := connected.Patch(ctx, patched, client.MergeFrom(&pool)); err != nil {
		return fmt.Errorf("asking HostPool %s for a retry: %w", key, err)
	}

	return writeText(out, fmt.Sprintf("Release %s (%s), which failed on node %s, will be tried again.\n",
		chosen.Version, chosen.Digest, chosen.Node))
}

func choosePoisoned(pool *v1alpha1.HostPool, digest string) (v1alpha1.PoisonedRelease, error) {
	list := pool.Status.Poisoned
	if len(list) == 0 {
		return v1alpha1.PoisonedRelease{}, errNothingPoisoned
	}
	wanted := digest
	if wanted == "" && pool.Status.Release != nil {
		wanted = pool.Status.Release.Digest
	}
	for _, poisoned := range list {
		if poisoned.Digest == wanted {
			return poisoned, nil
		}
	}
	known := make([]string, 0, len(list))
	for _, poisoned := range list {
		known = append(known, poisoned.Digest)
	}
	switch {
	case digest != "":
		return v1alpha1.PoisonedRelease{}, fmt.Errorf("%w: %s; these are: %s", errDigestNotFound, digest, strings.Join(known, ", "))
	case len(list) == 1:
		return list[0], nil
	default:
		return v1alpha1.PoisonedRelease{}, fmt.Errorf("%w; these are: %s", errSeveralPoisoned, strings.Join(known, ", "))
	}
}
