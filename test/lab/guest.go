package lab

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/agent/install"
	"github.com/stayput-dev/stayput/test/lab/controlplane"
	"github.com/stayput-dev/stayput/test/lab/machine"
)

const (
	privateMode = 0o600
	publicMode  = 0o644

	// ImageRegistry is the name under which the guests' containerd asks for images of pods, such as the sandbox image;
	// it leads to the lab's registry.
	ImageRegistry = "lab.registry:5000"

	registryCAFile     = "/etc/stayput/registry-ca.crt"
	registryConfigFile = "/etc/stayput/registry.json"
)

// guestFiles are what a machine reads from its config drive at the first boot: who it is, and whom it may talk to.
func (l *Lab) guestFiles(ctx context.Context, node, providerID, address string) ([]machine.File, error) {
	files := []machine.File{
		public("/etc/hostname", node+"\n"),
		public("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 "+node+"\n"),
	}

	for _, part := range []func() ([]machine.File, error){
		func() ([]machine.File, error) { return l.kubeletFiles(node, providerID, address) },
		l.registryFiles,
		func() ([]machine.File, error) { return l.agentFiles(ctx, node) },
	} {
		more, err := part()
		if err != nil {
			return nil, fmt.Errorf("preparing the files of %s: %w", node, err)
		}

		files = append(files, more...)
	}

	return files, nil
}

func (l *Lab) kubeletFiles(node, providerID, address string) ([]machine.File, error) {
	kubeconfig, err := l.Cluster.Kubeconfig(controlplane.Node(node), l.Cluster.GuestURL())
	if err != nil {
		return nil, err
	}

	settings, err := yaml.Marshal(map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"providerID":     providerID,
		"authentication": map[string]any{"x509": map[string]any{"clientCAFile": "/etc/kubernetes/ca.crt"}},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the kubelet's configuration: %w", err)
	}

	return []machine.File{
		{Path: "/etc/kubernetes/kubeconfig", Mode: privateMode, Data: kubeconfig},
		public("/etc/kubernetes/ca.crt", string(l.Cluster.CA().CertPEM())),
		public("/etc/kubernetes/kubelet.conf.d/10-lab.conf", string(settings)),
		public("/etc/kubernetes/kubelet.env", "KUBELET_ARGS=--node-ip="+address+"\n"),
	}, nil
}

// registryFiles lead the guest's own 127.0.0.1:PORT to the registry on the host, and tell containerd to ask there.
func (l *Lab) registryFiles() ([]machine.File, error) {
	user, err := l.Registry.Authenticator().Authorization()
	if err != nil {
		return nil, fmt.Errorf("reading the registry's user: %w", err)
	}

	const units = "/etc/systemd/system/"

	files := []machine.File{
		public(units+"lab-registry.socket", fmt.Sprintf(`[Unit]
Description=The lab's registry at this machine's own address

[Socket]
ListenStream=%s
`, l.Registry.Address())),
		public(units+"lab-registry.service", fmt.Sprintf(`[Unit]
Description=The lab's registry at this machine's own address
Requires=lab-registry.socket
After=lab-registry.socket

[Service]
Type=notify
ExecStart=/usr/lib/systemd/systemd-socket-proxyd %s:%d
`, controlplane.GuestHost, l.Registry.Port())),
		{Path: units + "sockets.target.wants/lab-registry.socket", Link: "../lab-registry.socket"},
	}

	for _, name := range []string{ImageRegistry, l.Registry.Address()} {
		folder := "/etc/containerd/certs.d/" + name + "/"
		files = append(files,
			machine.File{Path: folder + "hosts.toml", Mode: privateMode, Data: l.hostsTOML(folder+"ca.crt", user)},
			public(folder+"ca.crt", string(l.Registry.CA())))
	}

	return files, nil
}

// hostsTOML is containerd's configuration of one registry, docs/hosts.md of containerd. It has no field for a user,
// hence the header.
func (l *Lab) hostsTOML(caFile string, user *authn.AuthConfig) []byte {
	server := "https://" + l.Registry.Address()
	credentials := base64.StdEncoding.EncodeToString([]byte(user.Username + ":" + user.Password))

	return fmt.Appendf(nil, `server = %[1]q

[host.%[1]q]
  capabilities = ["pull", "resolve"]
  ca = %[2]q
  [host.%[1]q.header]
    Authorization = "Basic %[3]s"
`, server, caFile, credentials)
}

// agentFiles are the agent with its configuration and credentials, as `stayput node install` puts them.
func (l *Lab) agentFiles(ctx context.Context, node string) ([]machine.File, error) {
	if l.state.Agent == "" {
		return nil, nil
	}

	kubeconfig, err := l.Cluster.Kubeconfig(controlplane.Agent(node), l.Cluster.GuestURL())
	if err != nil {
		return nil, err
	}

	settings, err := yaml.Marshal(config.Config{
		NodeName: node, Registry: config.Registry{DockerConfig: registryConfigFile, CAFile: registryCAFile},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding the agent's configuration: %w", err)
	}

	docker, err := l.Registry.DockerConfig()
	if err != nil {
		return nil, err
	}

	installed, err := l.installedAgent(ctx)
	if err != nil {
		return nil, err
	}

	return append(installed,
		machine.File{Path: config.DefaultKubeconfig, Mode: privateMode, Data: kubeconfig},
		machine.File{Path: registryConfigFile, Mode: privateMode, Data: docker},
		public(registryCAFile, string(l.Registry.CA())),
		public(config.DefaultPath, string(settings))), nil
}

func (l *Lab) installedAgent(ctx context.Context) ([]machine.File, error) {
	program, err := os.ReadFile(l.state.Agent)
	if err != nil {
		return nil, fmt.Errorf("reading the agent's program: %w", err)
	}

	root, err := os.MkdirTemp(l.dir, ".agent-")
	if err != nil {
		return nil, fmt.Errorf("making a directory for the agent: %w", err)
	}
	defer os.RemoveAll(root)

	if _, err := (install.Installer{Root: root}).Install(ctx, bytes.NewReader(program)); err != nil {
		return nil, fmt.Errorf("installing the agent: %w", err)
	}

	return filesBelow(root)
}

// filesBelow are the files and links below root, with paths as if root were "/".
func filesBelow(root string) ([]machine.File, error) {
	var files []machine.File

	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}

		file := machine.File{Path: strings.TrimPrefix(path, root)}
		if entry.Type()&fs.ModeSymlink != 0 {
			file.Link, err = os.Readlink(path)
			files = append(files, file)

			return err //nolint:wrapcheck // the caller says what was read
		}

		info, err := entry.Info()
		if err != nil {
			return err //nolint:wrapcheck // the caller says what was read
		}

		file.Mode = info.Mode().Perm()
		file.Data, err = os.ReadFile(path) //nolint:gosec // of the lab's own directory
		files = append(files, file)

		return err //nolint:wrapcheck // the caller says what was read
	})
	if err != nil {
		return nil, fmt.Errorf("reading the installed agent: %w", err)
	}

	return files, nil
}

func public(path, data string) machine.File {
	return machine.File{Path: path, Mode: publicMode, Data: []byte(data)}
}
