package lab

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stayput-dev/stayput/test/lab/controlplane"
	"github.com/stayput-dev/stayput/test/lab/process"
)

const (
	controllerDir       = "controller"
	controllerName      = "stayput-controller"
	controllerNamespace = "stayput-system"

	// PullSecret is the Secret in Namespace with which HostPools resolve images.
	PullSecret = "registry"
	// ClusterSecret is the Secret in Namespace with the kubeconfig of the Nodes' cluster, when that is another one.
	ClusterSecret = "nodes-kubeconfig" //nolint:gosec // a name
)

// StartController starts the controller's program on the host, with no more rights than its service account has in
// config/rbac. Its log is DIR/controller/stayput-controller.log. When it runs already it is an error.
func (l *Lab) StartController(ctx context.Context, program string) (*process.Process, error) {
	if running, err := process.Open(l.path(controllerDir), controllerName); err == nil && running.Alive() {
		return nil, fmt.Errorf("starting the controller: it runs already (PID %d)", running.PID()) //nolint:err113 // a mistake of the caller
	}

	kubeconfig, err := l.controllerKubeconfig(l.Management)
	if err != nil {
		return nil, err
	}

	if err := os.MkdirAll(l.path(controllerDir), dirMode); err != nil {
		return nil, fmt.Errorf("making the controller's directory: %w", err)
	}

	file := l.path(controllerDir, "kubeconfig")
	if err := renameio.WriteFile(file, kubeconfig, fileMode); err != nil {
		return nil, fmt.Errorf("writing the controller's kubeconfig: %w", err)
	}

	if err := l.makeSecrets(ctx); err != nil {
		return nil, err
	}

	return process.Start(l.path(controllerDir), process.Spec{
		Priority: process.Serving,
		Name:     controllerName, Path: program, Args: []string{
			"--kubeconfig=" + file, "--metrics-bind-address=0", "--health-probe-bind-address=0",
			"--leader-election-namespace=" + controllerNamespace,
		},
	})
}

// Controller is the controller that StartController started; the error wraps process.ErrGone when there is none.
func (l *Lab) Controller() (*process.Process, error) {
	return process.Open(l.path(controllerDir), controllerName)
}

func (l *Lab) controllerKubeconfig(cluster *controlplane.Cluster) ([]byte, error) {
	return cluster.Kubeconfig(controlplane.ServiceAccount(controllerNamespace, controllerName), cluster.URL())
}

// makeSecrets makes what HostPools refer to.
func (l *Lab) makeSecrets(ctx context.Context) error {
	docker, err := l.Registry.DockerConfig()
	if err != nil {
		return err
	}

	secrets := []*corev1.Secret{{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: PullSecret},
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: docker, "ca.crt": l.Registry.CA()},
	}}

	if l.state.Management {
		kubeconfig, err := l.controllerKubeconfig(l.Cluster)
		if err != nil {
			return err
		}

		secrets = append(secrets, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: ClusterSecret},
			Data:       map[string][]byte{"value": kubeconfig},
		})
	}

	var errs []error

	for _, secret := range secrets {
		if err := l.ManagementClient.Create(ctx, secret); err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("making Secret %s: %w", client.ObjectKeyFromObject(secret), err))
		}
	}

	return errors.Join(errs...)
}
