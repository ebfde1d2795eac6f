package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/test/lab/tools"
)

const (
	kubernetesVersion = "v1.36.3"
	// A shared machine may be busy compiling.
	startTimeout = 2 * time.Minute
	stopTimeout  = 30 * time.Second
)

var errMissingBinary = errors.New("kube-apiserver and etcd are missing; run `make lab-tools`")

// Server is a running API server.
type Server struct {
	environment *envtest.Environment
	// Config has the rights of system:masters.
	Config *rest.Config
	// Client is an uncached client with the same rights.
	Client client.Client
	// Kubeconfig is a self-contained kubeconfig with the same rights.
	Kubeconfig []byte
}

// Scheme knows every kind that Stayput's controllers handle.
func Scheme() (*kruntime.Scheme, error) {
	scheme := kruntime.NewScheme()
	for _, add := range []func(*kruntime.Scheme) error{
		kubescheme.AddToScheme, v1alpha1.AddToScheme, metal3.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("registering kinds: %w", err)
		}
	}

	return scheme, nil
}

// Start starts an API server; Stop it.
func Start(ctx context.Context) (*Server, error) {
	assets, err := binaries()
	if err != nil {
		return nil, err
	}
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	root, err := tools.RepositoryRoot()
	if err != nil {
		return nil, err
	}
	metal3CRDs, err := tools.CRDs(ctx, root, "metal3")
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{
		Scheme:                   scheme,
		BinaryAssetsDirectory:    assets,
		CRDDirectoryPaths:        []string{filepath.Join(root, "config", "crd", "bases"), metal3CRDs},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  stopTimeout,
	}
	environment.ControlPlane.GetAPIServer().Configure().Set("authorization-mode", "Node,RBAC")
	config, err := environment.Start()
	if err != nil {
		return nil, fmt.Errorf("starting kube-apiserver: %w", err)
	}
	direct, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making a client: %w", err), environment.Stop())
	}

	return &Server{environment: environment, Config: config, Client: direct, Kubeconfig: environment.KubeConfig}, nil
}

// Stop stops the API server and its etcd.
func (s *Server) Stop() error {
	if err := s.environment.Stop(); err != nil {
		return fmt.Errorf("stopping kube-apiserver: %w", err)
	}

	return nil
}

// Kubectl is the path of the kubectl that belongs to the server.
func Kubectl() (string, error) {
	assets, err := binaries()

	return filepath.Join(assets, "kubectl"), err
}

func binaries() (string, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("finding the user's cache folder: %w", err)
		}
		assets = filepath.Join(cache, "stayput-lab", "kubernetes-"+kubernetesVersion)
	}
	if _, err := os.Stat(filepath.Join(assets, "kube-apiserver")); err != nil { //nolint:gosec // the folder is the user's own choice
		return "", fmt.Errorf("%w (looked in %s on %s)", errMissingBinary, assets, runtime.GOARCH)
	}

	return assets, nil
}
