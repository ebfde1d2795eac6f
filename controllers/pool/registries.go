package pool

import (
	"context"
	"crypto/x509"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/gardenlinux"
	"github.com/stayput-dev/stayput/osimage/trust"
)

var errNoCertificate = errors.New(`key "ca.crt" of the pull Secret holds no PEM certificate`)

// Registries look images up with osimage. Each pool has its own credentials, so each look-up has its own client.
type Registries struct {
	// HostsDir is a folder with containerd's hosts.toml files, "" for no mirrors.
	HostsDir string
	// Proxy is the URL of a proxy, "" for what the environment says.
	Proxy string
}

var _ Resolver = Registries{}

// Resolve implements Resolver. What is verified is the digest that the nodes are told; what is signed for one architecture
// only is refused for all.
func (r Registries) Resolve(ctx context.Context, request ImageRequest) (Image, error) {
	options, err := r.options(ctx, request)
	if err != nil {
		return Image{}, err
	}
	found, err := resolveWith(ctx, request.Image, options...)
	if err == nil && request.Policy.Mode() != trust.ModeOff {
		found, err = resolveWith(ctx, found.Reference, append(options, osimage.WithTrust(request.Policy))...)
	}
	if err != nil {
		return Image{}, err
	}

	return Image{Digest: found.Digest, Version: found.Version, Signature: found.Signature}, nil
}

func resolveWith(ctx context.Context, reference string, options ...osimage.Option) (osimage.Release, error) {
	client, err := osimage.NewClient(options...)
	if err != nil {
		return osimage.Release{}, err
	}

	return client.Release(ctx, reference)
}

func (r Registries) options(ctx context.Context, request ImageRequest) ([]osimage.Option, error) {
	logger := log.FromContext(ctx)
	options := []osimage.Option{
		osimage.WithPlainHTTP(request.PlainHTTP), osimage.WithHostsDir(r.HostsDir), osimage.WithProxy(r.Proxy),
		osimage.WithForeign(gardenlinux.OCI{}),
		osimage.WithHostsWarning(func(text string) { logger.Info("registry hosts", "warning", text) }),
	}
	if len(request.DockerConfig) > 0 {
		options = append(options, osimage.WithDockerConfigJSON(request.DockerConfig))
	}
	if len(request.CA) > 0 {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(request.CA) {
			return nil, errNoCertificate
		}
		options = append(options, osimage.WithRootCAs(roots))
	}

	return options, nil
}
