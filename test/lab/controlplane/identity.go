package controlplane

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/stayput-dev/stayput/test/lab/pki"
)

// Identity is a user of the API server, with groups.
type Identity struct {
	User   string
	Groups []string
}

// Administrator may do everything.
func Administrator() Identity { return Identity{"lab-admin", []string{"system:masters"}} }

// Node is the kubelet of the node.
func Node(name string) Identity { return Identity{"system:node:" + name, []string{"system:nodes"}} }

// Agent is the Stayput agent of the node.
func Agent(node string) Identity {
	return Identity{"stayput:agent:" + node, []string{"stayput:agents"}}
}

// ServiceAccount is a pod's identity, here for a process on the host that stands for the pod.
func ServiceAccount(namespace, name string) Identity {
	return Identity{
		User: "system:serviceaccount:" + namespace + ":" + name,
		// The groups that the API server gives to a service account's token.
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
}

// Kubeconfig makes a kubeconfig with a new client certificate. server is URL() or GuestURL().
func (c *Cluster) Kubeconfig(identity Identity, server string) ([]byte, error) {
	pair, err := c.ca.Issue(pki.Leaf{CommonName: identity.User, Organizations: identity.Groups})
	if err != nil {
		return nil, err
	}

	const name = "lab"

	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.ca.CertPEM()}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name

	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("writing the kubeconfig of %s: %w", identity.User, err)
	}

	return data, nil
}

// RESTConfig is the identity's client configuration, for a client on this host.
func (c *Cluster) RESTConfig(identity Identity) (*rest.Config, error) {
	data, err := c.Kubeconfig(identity, c.URL())
	if err != nil {
		return nil, err
	}

	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig of %s: %w", identity.User, err)
	}

	return config, nil
}

// makePKI writes every key, certificate and kubeconfig that the components need.
func (c *Cluster) makePKI() error {
	var err error
	if c.ca, err = pki.LoadOrCreate(c.pkiDir(), caName); err != nil {
		return err
	}

	servers := map[string][]string{
		"apiserver": {
			loopback, GuestHost, "localhost", "10.96.0.1", // the first of serviceCIDR
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		},
		portController: {loopback, "localhost"},
		portScheduler:  {loopback, "localhost"},
	}
	for name, hosts := range servers {
		if err := c.issue(name, pki.Leaf{CommonName: name, Hosts: hosts}); err != nil {
			return err
		}
	}

	if err := c.makeServiceAccountKey(); err != nil {
		return err
	}

	kubeconfigs := map[string]Identity{
		c.KubeconfigFile(): Administrator(),
		filepath.Join(c.dir, portController+".kubeconfig"): {User: "system:kube-controller-manager"},
		filepath.Join(c.dir, portScheduler+".kubeconfig"):  {User: "system:kube-scheduler"},
	}
	for file, identity := range kubeconfigs {
		data, err := c.Kubeconfig(identity, c.URL())
		if err != nil {
			return err
		}

		if err := renameio.WriteFile(file, data, fileMode); err != nil {
			return fmt.Errorf("writing %s: %w", file, err)
		}
	}

	return c.writeAuditPolicy()
}

func (c *Cluster) issue(name string, leaf pki.Leaf) error {
	pair, err := c.ca.Issue(leaf)
	if err != nil {
		return err
	}

	return pair.Write(c.pkiDir(), name)
}

// makeServiceAccountKey makes the key pair that signs service account tokens. The API server takes the public key
// from the certificate.
func (c *Cluster) makeServiceAccountKey() error {
	if _, err := os.Stat(c.pkiFile("service-account.key")); err == nil {
		return nil // tokens that were issued before a restart stay good
	}

	return c.issue("service-account", pki.Leaf{CommonName: "service-account"})
}
