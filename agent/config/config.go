package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// The defaults.
const (
	DefaultPath          = "/etc/stayput/agent.yaml"
	DefaultKubeconfig    = "/etc/stayput/kubeconfig"
	DefaultStateDir      = "/var/lib/stayput"
	DefaultHealthz       = "http://127.0.0.1:10248/healthz"
	DefaultRuntimeSocket = "/run/containerd/containerd.sock"

	// DefaultHostsDir and DefaultKeyDir are used when they are there.
	DefaultHostsDir = "/etc/stayput/certs.d"
	DefaultKeyDir   = "/etc/stayput/trust.d"
)

// ErrInvalid is wrapped by every error about the contents of the file.
var ErrInvalid = errors.New("invalid agent configuration")

// Config is the file's contents.
type Config struct {
	// NodeName is the name of the Node object. Default: the host name in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// Kubeconfig is the path of the agent's own credentials.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// StateDir holds the journal and the boot gate's files. It must survive a slot switch.
	StateDir string `json:"stateDir,omitempty"`
	// Registry says how images are fetched.
	Registry Registry `json:"registry,omitzero"`
	// Trust says which signatures images need.
	Trust Trust `json:"trust,omitzero"`
	// Kubelet says where the kubelet answers.
	Kubelet Kubelet `json:"kubelet,omitzero"`
	// ContainerRuntime says where containerd answers.
	ContainerRuntime ContainerRuntime `json:"containerRuntime,omitzero"`
}

// Registry says how images are fetched.
type Registry struct {
	// DockerConfig is the path of a docker config.json with the registry credentials, "" for none.
	DockerConfig string `json:"dockerConfig,omitempty"`
	// CAFile is the path of a PEM bundle that is trusted besides the system's, "" for none.
	CAFile string `json:"caFile,omitempty"`
	// PlainHTTP allows HTTP without TLS.
	PlainHTTP bool `json:"plainHTTP,omitempty"`
	// HostsDir is a folder with containerd's hosts.toml files: mirrors are asked first. "" is DefaultHostsDir when that is
	// there, and no mirrors when it is not.
	HostsDir string `json:"hostsDir,omitempty"`
	// Proxy is the URL of a proxy, "" for what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say.
	Proxy string `json:"proxy,omitempty"`
	// LimitRate bounds what is received, in bytes a second, with Kubernetes' suffixes: "20M", "500Ki". "" is no bound.
	LimitRate string `json:"limitRate,omitempty"`
}

// BytesPerSecond is LimitRate as a number, 0 for no bound.
func (r Registry) BytesPerSecond() (int64, error) {
	if r.LimitRate == "" {
		return 0, nil
	}

	quantity, err := resource.ParseQuantity(r.LimitRate)
	if err != nil || quantity.Value() <= 0 {
		return 0, problemf("registry.limitRate %q: must be a number of bytes a second above 0, such as 20M or 500Ki", r.LimitRate)
	}

	return quantity.Value(), nil
}

// Trust says which signatures images need, whatever the cluster asks for.
type Trust struct {
	// KeyDir is a folder with the public keys, *.pub and *.pem, of those who may sign what this node runs. An image that
	// none of them signed is refused. "" is DefaultKeyDir when it has keys; a folder that is named here must have some.
	KeyDir string `json:"keyDir,omitempty"`
}

// Kubelet says where the kubelet answers.
type Kubelet struct {
	// Healthz is the URL of its health endpoint.
	Healthz string `json:"healthz,omitempty"`
}

// ContainerRuntime says where containerd answers.
type ContainerRuntime struct {
	// Socket is the path of its socket.
	Socket string `json:"socket,omitempty"`
}

// Load reads the file, fills in the defaults and checks the result. An absent file gives the defaults.
func Load(path string) (Config, error) {
	var config Config

	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return Config{}, fmt.Errorf("reading the agent configuration: %w", err)
	default:
		if err := cmp.Or(checkOneDocument(data), yaml.UnmarshalStrict(data, &config)); err != nil {
			return Config{}, fmt.Errorf("%w: %s: %w", ErrInvalid, path, err)
		}
	}

	if err := config.setDefaults(); err != nil {
		return Config{}, err
	}

	if err := config.validate(); err != nil {
		return Config{}, fmt.Errorf("%w: %s: %w", ErrInvalid, path, err)
	}

	return config, nil
}

// Default is the configuration without a file. NodeName is "" when the machine has no host name.
func Default() Config {
	var config Config

	if err := config.setDefaults(); err != nil {
		config.NodeName = ""
	}

	return config
}

func (c *Config) setDefaults() error {
	setDefault(&c.Kubeconfig, DefaultKubeconfig)
	setDefault(&c.StateDir, DefaultStateDir)
	setDefault(&c.Kubelet.Healthz, DefaultHealthz)
	setDefault(&c.ContainerRuntime.Socket, DefaultRuntimeSocket)

	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("taking the node name from the host name (nodeName is not set): %w", err)
		}

		c.NodeName = strings.ToLower(name)
	}

	return nil
}

func setDefault(field *string, value string) {
	if *field == "" {
		*field = value
	}
}

func (c *Config) validate() error {
	var problems []error

	for _, reason := range validation.IsDNS1123Subdomain(c.NodeName) {
		problems = append(problems, problemf("nodeName %q: %s; use the name of the Node", c.NodeName, reason))
	}

	for _, named := range []struct{ field, path string }{
		{"kubeconfig", c.Kubeconfig},
		{"stateDir", c.StateDir},
		{"registry.dockerConfig", c.Registry.DockerConfig},
		{"registry.caFile", c.Registry.CAFile},
		{"registry.hostsDir", c.Registry.HostsDir},
		{"trust.keyDir", c.Trust.KeyDir},
		{"containerRuntime.socket", c.ContainerRuntime.Socket},
	} {
		if named.path != "" && !filepath.IsAbs(named.path) {
			problems = append(problems, problemf("%s %q: must be an absolute path", named.field, named.path))
		}
	}

	if _, err := c.Registry.BytesPerSecond(); err != nil {
		problems = append(problems, err)
	}

	if !isProxy(c.Registry.Proxy) {
		// Its value may hold a password.
		problems = append(problems, problemf("registry.proxy: must be the URL of a proxy, such as http://host:port or socks5://host:port"))
	}

	if !isHealthz(c.Kubelet.Healthz) {
		problems = append(problems, problemf("kubelet.healthz %q: must be an http or https URL, such as %s",
			c.Kubelet.Healthz, DefaultHealthz))
	}

	return errors.Join(problems...)
}

// isProxy tells whether osimage.WithProxy takes the address; the configuration is read by the boot gate, too, which fetches
// nothing.
func isProxy(text string) bool {
	if text == "" {
		return true
	}

	address, err := url.Parse(text)

	return err == nil && address.Hostname() != "" && slices.Contains([]string{"http", "https", "socks5", "socks5h"}, address.Scheme)
}

func isHealthz(text string) bool {
	address, err := url.Parse(text)
	if err != nil || address.Hostname() == "" || (address.Scheme != "http" && address.Scheme != "https") {
		return false
	}

	if address.Port() == "" {
		return true
	}

	port, err := strconv.ParseUint(address.Port(), 10, 16)

	return err == nil && port > 0
}

// checkOneDocument refuses what would be read in part only: the rest of a file after its first document.
func checkOneDocument(data []byte) error {
	documents := 0

	for document := range bytes.SplitSeq(append([]byte("\n"), data...), []byte("\n---")) {
		if hasContent(document) {
			documents++
		}
	}

	if documents > 1 {
		return problemf("it has %d YAML documents; write one", documents)
	}

	return nil
}

// hasContent tells whether there is anything besides comments.
func hasContent(document []byte) bool {
	for line := range bytes.Lines(document) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return true
		}
	}

	return false
}

// problemf is one thing that is wrong; all are joined under ErrInvalid.
func problemf(format string, args ...any) error {
	return fmt.Errorf(format, args...) //nolint:err113 // The caller wraps it with ErrInvalid.
}
