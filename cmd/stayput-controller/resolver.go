package main

import (
	"context"
	"crypto/x509"
	"errors"

	"github.com/stayput-dev/stayput/controllers/pool"
	"github.com/stayput-dev/stayput/osimage"
)

var errNoCertificate = errors.New(`key "ca.crt" of the pull Secret holds no PEM certificate`)

// resolver looks images up with osimage. Each pool has its own credentials, so each look-up has its own client.
type resolver struct{}

// Resolve implements pool.Resolver.
func (resolver) Resolve(ctx context.Context, request pool.ImageRequest) (pool.Image, error) {
	options := []osimage.Option{osimage.WithPlainHTTP(request.PlainHTTP)}
	if len(request.DockerConfig) > 0 {
		options = append(options, osimage.WithDockerConfigJSON(request.DockerConfig))
	}
	if len(request.CA) > 0 {
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(request.CA) {
			return pool.Image{}, errNoCertificate
		}
		options = append(options, osimage.WithRootCAs(roots))
	}
	client, err := osimage.NewClient(options...)
	if err != nil {
		return pool.Image{}, err
	}
	resolved, err := client.Resolve(ctx, request.Image)
	if err != nil {
		return pool.Image{}, err
	}

	return pool.Image{Digest: resolved.Digest, Version: resolved.Config.Version}, nil
}
