package osimage

import (
	"context"
	"errors"
	"reflect"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/stayput-dev/stayput/osimage/hosts"
)

// place is where the content of one registry can be had: its mirrors, in order, and the registry itself as the last.
type place struct {
	client    *Client
	registry  name.Registry
	config    hosts.Config
	endpoints []*endpoint
}

// placeOf finds the hosts of a registry. While its hosts.toml stays the same, so do they and their connections.
func (c *Client) placeOf(registry name.Registry) (*place, error) {
	config := hosts.Config{}

	if c.hostsDir != "" {
		var err error

		config, err = hosts.Load(c.hostsDir, hosts.Name(registry.RegistryStr()))
		if err != nil {
			return nil, &Error{
				Kind: ErrInvalid, Subject: "hosts of " + registry.RegistryStr(), Err: err,
				Fix: "correct the file, or do without the folder of hosts (--hosts-dir)",
			}
		}
	}

	c.mutex.Lock()
	defer c.mutex.Unlock()

	known := c.places[registry.RegistryStr()]
	if known != nil && reflect.DeepEqual(known.config, config) {
		return known, nil
	}

	result := &place{client: c, registry: registry, config: config}

	if err := result.setUp(); err != nil {
		return nil, err
	}

	if c.hostsWarning != nil {
		for _, text := range config.Warnings {
			c.hostsWarning(text)
		}
	}

	c.places[registry.RegistryStr()] = result

	return result, nil
}

func (p *place) setUp() error {
	for _, mirror := range p.config.Mirrors {
		host, err := p.client.newEndpoint(mirror, p.registry, false)
		if err != nil {
			return err
		}

		p.endpoints = append(p.endpoints, host)
	}

	if p.config.File == "" {
		p.endpoints = append(p.endpoints, p.client.registryItself(p.registry))

		return nil
	}

	host, err := p.client.newEndpoint(p.config.Server, p.registry, true)
	if err != nil {
		return err
	}

	p.endpoints = append(p.endpoints, host)

	return nil
}

// registryItself is the only host when nothing else is said.
func (c *Client) registryItself(registry name.Registry) *endpoint {
	return &endpoint{
		host: hosts.Host{
			Scheme: "https", Address: registry.RegistryStr(), Path: "/v2", Capabilities: hosts.Pull | hosts.Resolve | hosts.Push,
		},
		registry: registry, account: registry, last: true,
		network:  c.network.transport(connection{roots: c.roots, plainHTTP: c.plainHTTP}),
		sessions: sessions{},
	}
}

func (p *place) withoutMirrors() *place {
	return &place{client: p.client, registry: p.registry, config: p.config, endpoints: p.endpoints[len(p.endpoints)-1:]}
}

// each asks the hosts with a capability in turn, until one does the work. Its errors are classified.
func (p *place) each(ctx context.Context, subject string, need hosts.Capability, work func(host *endpoint) error) error {
	var tries []tried

	for _, host := range p.inOrder() {
		if !host.host.May(need) {
			continue
		}

		err := classify(ctx, subject, work(host))
		if err == nil || ctx.Err() != nil {
			return err
		}

		p.failed(ctx, host, err)

		tries = append(tries, tried{host: host, err: err})
	}

	if len(tries) == 0 {
		return &Error{
			Kind: ErrNotFound, Subject: subject, Detail: p.config.File + " allows no host to be asked for it",
			Fix: `give a host the capability "pull", and "resolve" for tags`,
		}
	}

	return allFailed(subject, tries)
}

// pullsOnly tells that there is a host that has the blobs, and may not be asked for tags.
func (p *place) pullsOnly() bool {
	return slices.ContainsFunc(p.endpoints, func(host *endpoint) bool {
		return host.host.May(hosts.Pull) && !host.host.May(hosts.Resolve)
	})
}

// inOrder puts the mirrors that failed just now behind all others: when those fail too, they are better than nothing.
func (p *place) inOrder() []*endpoint {
	var awake, resting []*endpoint

	now := p.client.now()

	for _, host := range p.endpoints {
		if host.resting(now) {
			resting = append(resting, host)
		} else {
			awake = append(awake, host)
		}
	}

	return append(awake, resting...)
}

// failed notes that a host did not do its work, and tells it when another one follows.
func (p *place) failed(ctx context.Context, host *endpoint, err error) {
	if host.last {
		return
	}

	// A pause that a mirror asks for is for whoever asks it again, not for the next host.
	takeAskedPause(ctx)

	// A mirror that has not this one may have the next. One that cannot be reached, or refuses us, has none of them.
	if !isAboutTheBlob(err) {
		host.rest(p.client.now())
	}

	if p.client.notice != nil {
		p.client.notice(err, 0)
	}
}

// isAboutTheBlob tells errors of one blob or manifest from those of a host.
func isAboutTheBlob(err error) bool {
	for _, kind := range []error{ErrNotFound, ErrTruncated, ErrTooLarge, ErrWrongDigest, errNoRanges} {
		if errors.Is(err, kind) {
			return true
		}
	}

	return false
}

// pushTarget is the host that is written to: the registry itself, unless a mirror has the capability by name.
func (c *Client) pushTarget(registry name.Registry) (*endpoint, error) {
	place, err := c.placeOf(registry)
	if err != nil {
		return nil, err
	}

	for _, host := range place.endpoints {
		if host.host.May(hosts.Push) {
			return host, nil
		}
	}

	return nil, &Error{
		Kind: ErrInvalid, Subject: "pushing to " + registry.RegistryStr(), Detail: place.config.File + " allows no host to be pushed to",
		Fix: `give a host the capability "push"`,
	}
}

// blobsOf reads the blobs of a repository.
func (c *Client) blobsOf(repository name.Repository) (*registryBlobs, error) {
	place, err := c.placeOf(repository.Registry)
	if err != nil {
		return nil, err
	}

	result := &registryBlobs{client: c, repository: repository, locations: &locations{}}
	result.place.Store(place)

	return result, nil
}
