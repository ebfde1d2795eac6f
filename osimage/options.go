package osimage

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/config/types"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// Option changes how a client speaks to registries.
type Option func(*Client) error

// WithDockerConfig takes the credentials from a docker config file ("config.json"), credential helpers included. An
// empty path means none.
func WithDockerConfig(path string) Option {
	return func(client *Client) error {
		if path == "" {
			return nil
		}

		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("reading the registry credentials: %w (create the file, or leave the setting empty)", err)
		}

		if err := WithDockerConfigJSON(data)(client); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}

		return nil
	}
}

// WithDockerConfigJSON takes the credentials from the contents of a docker config file, such as the value of
// .dockerconfigjson in a Secret.
func WithDockerConfigJSON(data []byte) Option {
	return func(client *Client) error {
		file, err := config.LoadFromReader(bytes.NewReader(data))
		if err != nil {
			// The cause could quote the file, which holds secrets.
			return invalid("registry credentials", "they are not a docker config", `write them as {"auths": {…}}`)
		}

		client.keychain = dockerConfig{file: file}

		return nil
	}
}

// WithKeychain takes the credentials from a keychain, such as authn.DefaultKeychain: docker's and podman's files.
func WithKeychain(keychain authn.Keychain) Option {
	return func(client *Client) error {
		client.keychain = keychain

		return nil
	}
}

// WithCAFile trusts the certificate authorities in a PEM file besides the system's. An empty path adds none.
func WithCAFile(path string) Option {
	return func(client *Client) error {
		if path == "" {
			return nil
		}

		pool, err := x509.SystemCertPool()
		if err != nil {
			return fmt.Errorf("reading the system's certificate authorities: %w", err)
		}

		if err := addCAFile(pool, path); err != nil {
			return err
		}

		client.roots = pool

		return nil
	}
}

// WithRootCAs trusts only the certificate authorities in the pool.
func WithRootCAs(pool *x509.CertPool) Option {
	return func(client *Client) error {
		client.roots = pool

		return nil
	}
}

// WithPlainHTTP allows registries without TLS. Credentials and images then cross the network in the clear.
func WithPlainHTTP(allowed bool) Option {
	return func(client *Client) error {
		client.plainHTTP = allowed

		return nil
	}
}

// WithArchitecture refuses images that are not made for the GOARCH, and chooses by it from an index.
func WithArchitecture(architecture string) Option {
	return func(client *Client) error {
		if architecture != "" && !slices.Contains(Architectures(), architecture) {
			return invalid(fmt.Sprintf("architecture %q", architecture), "it is unknown",
				"use one of "+strings.Join(Architectures(), ", "))
		}

		client.architecture = architecture

		return nil
	}
}

// WithByteCounter calls count with the number of bytes of every piece that is received from a registry: layers,
// manifests, and answers that ended in an error. It is called from several goroutines.
func WithByteCounter(count func(n int64)) Option {
	return func(client *Client) error {
		client.count = count

		return nil
	}
}

// WithRetry sets how often and how soon failures are tried again.
func WithRetry(retry Retry) Option {
	return func(client *Client) error {
		if retry.Tries < 1 {
			return invalid(fmt.Sprintf("retry with %d tries", retry.Tries), "", "use at least 1")
		}

		client.retry = retry

		return nil
	}
}

// WithRetryNotice calls notice before each pause after which a failure is tried again, so that nobody takes the wait for
// a standstill, and with a pause of 0 when a mirror failed and the next host is asked. It is called from several goroutines.
func WithRetryNotice(notice func(cause error, pause time.Duration)) Option {
	return func(client *Client) error {
		client.notice = notice

		return nil
	}
}

// WithStallTimeout sets how long a request may move no byte, in either direction, before it counts as broken. The default
// is one minute.
func WithStallTimeout(after time.Duration) Option {
	return func(client *Client) error {
		if after <= 0 {
			return invalid(fmt.Sprintf("stall timeout %s", after), "", "use a duration above 0")
		}

		client.stallAfter = after

		return nil
	}
}

// WithHostsDir asks the mirrors first that containerd's hosts.toml files below a folder name, such as
// /etc/containerd/certs.d; see the package osimage/hosts. An empty path means no mirrors.
//
// The files are read again for each image, so that a change needs no restart. A tag is resolved only by hosts with that
// capability; blobs and manifests come from any host, since their digests are verified. A host that fails is asked
// after all others for half a minute. Each host gets only credentials that are kept under its own name.
func WithHostsDir(path string) Option {
	return func(client *Client) error {
		client.hostsDir = path

		return nil
	}
}

// WithHostsWarning calls warn with what hosts.toml files say and is not known.
func WithHostsWarning(warn func(text string)) Option {
	return func(client *Client) error {
		client.hostsWarning = warn

		return nil
	}
}

// WithRateLimit bounds what the client's transfers receive together, and what they send, to so many bytes a second each.
// 0 means no bound.
func WithRateLimit(bytesPerSecond int64) Option {
	return func(client *Client) error {
		if bytesPerSecond < 0 {
			return invalid(fmt.Sprintf("rate limit of %d bytes a second", bytesPerSecond), "", "use 0 or more")
		}

		client.limit = bytesPerSecond

		return nil
	}
}

// anonymous has no credentials.
type anonymous struct{}

func (anonymous) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.Anonymous, nil
}

// dockerConfig finds credentials in one docker config.
type dockerConfig struct {
	file *configfile.ConfigFile
}

// Resolve looks for the repository, then for its registry.
func (d dockerConfig) Resolve(target authn.Resource) (authn.Authenticator, error) {
	for _, key := range []string{target.String(), target.RegistryStr()} {
		if key == name.DefaultRegistry {
			key = authn.DefaultAuthKey
		}

		found, err := d.file.GetAuthConfig(key)
		if err != nil {
			return nil, fmt.Errorf("asking for the credentials of %s: %w", key, err)
		}

		// Docker fills the address in even when there is nothing else.
		found.ServerAddress = ""

		if found != (types.AuthConfig{}) {
			return authn.FromConfig(authn.AuthConfig{
				Username: found.Username, Password: found.Password, Auth: found.Auth,
				IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
			}), nil
		}
	}

	return authn.Anonymous, nil
}
