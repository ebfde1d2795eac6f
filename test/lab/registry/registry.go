package registry

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/renameio/v2"
	"golang.org/x/crypto/bcrypt"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/test/lab/pki"
	"github.com/stayput-dev/stayput/test/lab/ports"
	"github.com/stayput-dev/stayput/test/lab/process"
)

const (
	// Program is docker-registry of the Debian package of that name.
	Program = "/usr/bin/docker-registry"

	loopback    = "127.0.0.1"
	processName = "docker-registry"
	username    = "lab"

	dirMode  = 0o700
	fileMode = 0o600

	readyWait     = 30 * time.Second
	probeInterval = 50 * time.Millisecond
	probeTimeout  = 2 * time.Second
	stopGrace     = 5 * time.Second
	logLines      = 20

	stateFile = "registry.json"
)

// ErrNotReady means that the registry ended, or did not answer in time.
var ErrNotReady = errors.New("registry is not ready")

// Options say what to run.
type Options struct {
	// Dir holds everything of this registry: blobs, keys, log, pid file.
	Dir string
	// CA signs its certificate.
	CA *pki.Authority
}

// Registry is a registry that runs.
type Registry struct {
	dir   string
	state state
	ca    []byte
}

type state struct {
	Port     int    `json:"port"`
	Password string `json:"password"`
}

// Start brings a registry up and returns when it answers.
func Start(ctx context.Context, options Options) (*Registry, error) {
	if err := os.MkdirAll(options.Dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the registry's directory: %w", err)
	}

	port, err := new(ports.Allocator).Next()
	if err != nil {
		return nil, err
	}

	registry := &Registry{
		dir: options.Dir, ca: options.CA.CertPEM(), state: state{Port: port, Password: rand.Text()},
	}
	if err := registry.configure(options.CA); err != nil {
		return nil, err
	}

	child, err := process.Start(registry.dir, process.Spec{
		Priority: process.Serving,
		Name:     processName, Path: Program, Args: []string{"serve", registry.file("config.yaml")},
		Env: []string{"OTEL_TRACES_EXPORTER=none"},
	})
	if err != nil {
		return nil, fmt.Errorf("%w; is the Debian package docker-registry installed?", err)
	}

	if err := registry.wait(ctx, child); err != nil {
		return nil, errors.Join(err, registry.Stop(context.WithoutCancel(ctx)))
	}

	return registry, nil
}

// Open finds a registry that Start brought up earlier.
func Open(dir string) (*Registry, error) {
	registry := &Registry{dir: dir}

	data, err := os.ReadFile(registry.file(stateFile))
	if err != nil {
		return nil, fmt.Errorf("reading the registry's state: %w", err)
	}

	if err := json.Unmarshal(data, &registry.state); err != nil {
		return nil, fmt.Errorf("reading %s: %w", registry.file(stateFile), err)
	}

	if registry.ca, err = os.ReadFile(registry.CAFile()); err != nil {
		return nil, fmt.Errorf("reading the registry's CA: %w", err)
	}

	return registry, nil
}

// Stop ends the registry. Its directory stays. It is safe to repeat.
func (r *Registry) Stop(ctx context.Context) error {
	child, err := process.Open(r.dir, processName)
	if errors.Is(err, process.ErrGone) {
		return nil
	}

	if err != nil {
		return err
	}

	return child.Stop(ctx, stopGrace)
}

// Alive tells whether the registry's process runs.
func (r *Registry) Alive() bool {
	child, err := process.Open(r.dir, processName)

	return err == nil && child.Alive()
}

// Port is the TCP port, on this host and, through the forwarder, in guests.
func (r *Registry) Port() int { return r.state.Port }

// Address is host and port as they stand at the front of an image reference, on this host and in guests.
func (r *Registry) Address() string { return net.JoinHostPort(loopback, strconv.Itoa(r.state.Port)) }

// CAFile is the file of the authority that signed the registry's certificate; CA its bytes.
func (r *Registry) CAFile() string { return r.file("ca.crt") }

// CA is the authority that signed the registry's certificate, in PEM.
func (r *Registry) CA() []byte { return r.ca }

// Authenticator is the registry's user.
func (r *Registry) Authenticator() authn.Authenticator {
	return &authn.Basic{Username: username, Password: r.state.Password}
}

// DockerConfig is a config.json with the registry's user.
func (r *Registry) DockerConfig() ([]byte, error) {
	config := map[string]any{"auths": map[string]authn.AuthConfig{
		r.Address(): {Username: username, Password: r.state.Password},
	}}

	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encoding config.json: %w", err)
	}

	return data, nil
}

// Transport trusts the registry's authority alone.
func (r *Registry) Transport() (*http.Transport, error) {
	pool, err := pool(r.ca)
	if err != nil {
		return nil, err
	}

	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}, nil
}

// Push pushes an image to repository:tag and returns its reference by digest.
func (r *Registry) Push(ctx context.Context, repository, tag string, image v1.Image) (name.Digest, error) {
	reference, err := name.NewTag(r.Address() + "/" + repository + ":" + tag)
	if err != nil {
		return name.Digest{}, fmt.Errorf("naming the image: %w", err)
	}

	transport, err := r.Transport()
	if err != nil {
		return name.Digest{}, err
	}
	defer transport.CloseIdleConnections()

	err = remote.Write(reference, image,
		remote.WithContext(ctx), remote.WithAuth(r.Authenticator()), remote.WithTransport(transport))
	if err != nil {
		return name.Digest{}, fmt.Errorf("pushing %s: %w", reference, err)
	}

	digest, err := image.Digest()
	if err != nil {
		return name.Digest{}, fmt.Errorf("computing the digest of %s: %w", reference, err)
	}

	return reference.Context().Digest(digest.String()), nil
}

func (r *Registry) file(name string) string { return filepath.Join(r.dir, name) }

// configure writes everything that the registry reads.
func (r *Registry) configure(ca *pki.Authority) error {
	pair, err := ca.Issue(pki.Leaf{CommonName: "registry", Hosts: []string{loopback, "localhost", "10.0.2.2"}})
	if err != nil {
		return err
	}

	if err := pair.Write(r.dir, "tls"); err != nil {
		return err
	}

	hash, err := bcrypt.GenerateFromPassword([]byte(r.state.Password), bcrypt.MinCost) // it is checked at each request
	if err != nil {
		return fmt.Errorf("hashing the password: %w", err)
	}

	config, err := yaml.Marshal(r.config())
	if err != nil {
		return fmt.Errorf("encoding the configuration: %w", err)
	}

	saved, err := json.Marshal(r.state) //nolint:gosec // the made-up password is kept so that later commands can use it
	if err != nil {
		return fmt.Errorf("encoding the registry's state: %w", err)
	}

	for file, data := range map[string][]byte{
		"ca.crt": r.ca, "htpasswd": append([]byte(username+":"), hash...), "config.yaml": config, stateFile: saved,
	} {
		if err := renameio.WriteFile(r.file(file), data, fileMode); err != nil {
			return fmt.Errorf("writing %s: %w", r.file(file), err)
		}
	}

	return nil
}

// config is docker-registry's configuration, https://distribution.github.io/distribution/about/configuration/.
func (r *Registry) config() map[string]any {
	return map[string]any{
		"version": 0.1, //nolint:mnd // the format's version
		// One JSON line a request, with nanoseconds, instead of the access log, whose times are whole seconds.
		"log": map[string]any{
			"level": "info", "formatter": "json", "accesslog": map[string]any{"disabled": true},
		},
		"storage": map[string]any{
			"filesystem": map[string]any{"rootdirectory": r.file("data")},
			"delete":     map[string]any{"enabled": true},
		},
		"auth": map[string]any{"htpasswd": map[string]any{"realm": "lab", "path": r.file("htpasswd")}},
		"http": map[string]any{
			"addr": r.Address(),
			"tls":  map[string]any{"certificate": r.file("tls.crt"), "key": r.file("tls.key")},
		},
	}
}

func (r *Registry) wait(ctx context.Context, child *process.Process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWait, fmt.Errorf("%w after %s", ErrNotReady, readyWait))
	defer cancel()

	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()

	for {
		last := r.probe(ctx)
		if last == nil {
			return nil
		}

		select {
		case <-child.Exited():
			return fmt.Errorf("docker-registry ended: %w; the end of its log:\n%s", ErrNotReady, child.Tail(logLines))
		case <-ctx.Done():
			return fmt.Errorf("waiting for docker-registry: %w; last answer: %w", context.Cause(ctx), last)
		case <-ticker.C:
		}
	}
}

// probe is nil when the registry answers and lets its user in.
func (r *Registry) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	transport, err := r.Transport()
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+r.Address()+"/v2/", http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the registry: %w", err)
	}

	request.SetBasicAuth(username, r.state.Password)

	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("asking the registry: %w", err)
	}
	defer response.Body.Close()

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the registry answers %s: %w", response.Status, ErrNotReady)
	}

	return nil
}
