package clusters

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// The keys of a kubeconfig Secret, in the order in which they are tried: Cluster API writes the first.
const (
	secretKeyValue      = "value"
	secretKeyKubeconfig = "kubeconfig"
)

// Requests a second of one connection: a pass over a pool of some hundred nodes must not be throttled by the client;
// the server has its own priority and fairness.
const (
	clientQPS   = 50
	clientBurst = 100
)

var (
	errNoKubeconfig  = errors.New(`the Secret has neither key "value" nor key "kubeconfig"; put a kubeconfig there`)
	errNotKubeconfig = errors.New("the kubeconfig is not valid YAML of kind Config; write it anew")
	errOutside       = errors.New("reaches outside the Secret")
)

// kubeconfigOf is the kubeconfig in a Secret.
func kubeconfigOf(secret *corev1.Secret) ([]byte, error) {
	for _, key := range []string{secretKeyValue, secretKeyKubeconfig} {
		if data := secret.Data[key]; len(data) > 0 {
			return data, nil
		}
	}

	return nil, errNoKubeconfig
}

// ConfigFromSecret makes a client configuration from a kubeconfig Secret, under the rules of this package.
func ConfigFromSecret(secret *corev1.Secret) (*rest.Config, error) {
	kubeconfig, err := kubeconfigOf(secret)
	if err != nil {
		return nil, fmt.Errorf("reading Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}

	return restConfig(kubeconfig)
}

// restConfig makes a client configuration from a kubeconfig that came from a Secret.
func restConfig(kubeconfig []byte) (*rest.Config, error) {
	parsed, err := clientcmd.Load(kubeconfig)
	if err != nil {
		// The parser's error may quote the document, which holds credentials.
		return nil, errNotKubeconfig
	}
	if err := checkSelfContained(parsed); err != nil {
		return nil, err
	}
	config, err := clientcmd.NewDefaultClientConfig(*parsed, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig's current context %q: %w", parsed.CurrentContext, err)
	}
	config.QPS, config.Burst = clientQPS, clientBurst

	return config, nil
}

// checkSelfContained refuses what would run a program or read a file with the controller's rights.
func checkSelfContained(config *clientcmdapi.Config) error {
	for name, user := range config.AuthInfos {
		field := ""
		switch {
		case user.Exec != nil:
			field = "exec"
		case user.AuthProvider != nil:
			field = "auth-provider"
		case user.TokenFile != "":
			field = "tokenFile"
		case user.ClientCertificate != "":
			field = "client-certificate"
		case user.ClientKey != "":
			field = "client-key"
		}
		if field != "" {
			return fmt.Errorf("user %q uses %q, which %w; put a token or client-certificate-data and client-key-data there",
				name, field, errOutside)
		}
	}
	for name, cluster := range config.Clusters {
		if cluster.CertificateAuthority != "" {
			return fmt.Errorf("cluster %q uses %q, which %w; put certificate-authority-data there",
				name, "certificate-authority", errOutside)
		}
	}

	return nil
}
