package osimage

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/stayput-dev/stayput/osimage/hosts"
)

// restAfterFailure is how long a mirror that failed is asked after all others: each layer would wait for it again otherwise.
const restAfterFailure = 30 * time.Second

// sessions are authenticated transports, by repository and scope.
type sessions map[string]http.RoundTripper

// endpoint is one host that is asked for the content of a registry: the registry itself, or a mirror of it.
type endpoint struct {
	host hosts.Host
	// registry is the host as the registry library knows it; account is the one whose credentials are for it.
	registry, account name.Registry
	// last is the registry itself, or what hosts.toml has in its place. It never rests.
	last bool
	// network speaks to the host, without credentials.
	network http.RoundTripper

	mutex    sync.Mutex
	sessions sessions
	// rests is until when a mirror is asked after all others.
	rests time.Time
}

// repository is where the host has a repository of the registry.
func (e *endpoint) repository(repository name.Repository) name.Repository {
	return e.registry.Repo(repository.RepositoryStr())
}

// authorized does work with a session for a repository. When the registry does not accept a session that was good
// before, work is done once more with a new one.
func (e *endpoint) authorized(
	ctx context.Context, keychain authn.Keychain, repository name.Repository, scopes []string,
	work func(session http.RoundTripper) error,
) error {
	key := repository.RepositoryStr() + " " + strings.Join(scopes, " ")

	session, known, err := e.session(ctx, keychain, repository, key, scopes)
	if err != nil {
		return err
	}

	err = work(session)
	if !known || !isUnauthenticated(err) {
		return err
	}

	e.forget(key)

	session, _, err = e.session(ctx, keychain, repository, key, scopes)
	if err != nil {
		return err
	}

	return work(session)
}

// reading is authorized for what may be pulled from a repository of the registry; local is where the host has it.
func (e *endpoint) reading(
	ctx context.Context, keychain authn.Keychain, repository name.Repository,
	work func(local name.Repository, session http.RoundTripper) error,
) error {
	local := e.repository(repository)

	return e.authorized(ctx, keychain, local, []string{local.Scope(transport.PullScope)},
		func(session http.RoundTripper) error { return work(local, session) })
}

func (e *endpoint) session(
	ctx context.Context, keychain authn.Keychain, repository name.Repository, key string, scopes []string,
) (session http.RoundTripper, known bool, err error) {
	e.mutex.Lock()
	session, known = e.sessions[key]
	e.mutex.Unlock()

	if known {
		return session, true, nil
	}

	auth, err := authn.Resolve(ctx, keychain, e.account.Repo(repository.RepositoryStr()))
	if err != nil {
		return nil, false, &Error{
			Kind: ErrUnauthorized, Subject: "credentials for " + e.account.RegistryStr(), Err: err,
			Fix: "correct the docker config, or the credential helper that it names",
		}
	}

	session, err = transport.NewWithContext(ctx, e.registry, auth, e.network, scopes)
	if err != nil {
		return nil, false, fmt.Errorf("signing in to %s: %w", e.registry.RegistryStr(), err)
	}

	e.mutex.Lock()
	e.sessions[key] = session
	e.mutex.Unlock()

	return session, false, nil
}

func (e *endpoint) forget(key string) {
	e.mutex.Lock()
	delete(e.sessions, key)
	e.mutex.Unlock()
}

// rest keeps a mirror that failed from being asked first for a while.
func (e *endpoint) rest(now time.Time) {
	if e.last {
		return
	}

	e.mutex.Lock()
	defer e.mutex.Unlock()

	e.rests = now.Add(restAfterFailure)
}

func (e *endpoint) resting(now time.Time) bool {
	e.mutex.Lock()
	defer e.mutex.Unlock()

	return now.Before(e.rests)
}

// newEndpoint sets up the connections to a host of hosts.toml.
func (c *Client) newEndpoint(host hosts.Host, of name.Registry, last bool) (*endpoint, error) {
	var options []name.Option

	plainHTTP := host.Scheme == "http"
	if plainHTTP || last && c.plainHTTP {
		options = append(options, name.Insecure)
	}

	registry, err := name.NewRegistry(host.Address, options...)
	if err != nil {
		return nil, invalid("host "+host.URL(), err.Error(), "correct it in hosts.toml")
	}

	to, err := c.connectionTo(host)
	if err != nil {
		return nil, err
	}

	to.plainHTTP = plainHTTP || last && c.plainHTTP

	result := &endpoint{
		host: host, registry: registry, account: registry, last: last, sessions: sessions{},
		network: &route{inner: c.network.transport(to), host: host},
	}

	// A host that is not the registry is told whose images it is asked for, as containerd tells it.
	if !hosts.IsRegistryItself(of.RegistryStr(), host) {
		result.network = &route{inner: c.network.transport(to), host: host, namespace: hosts.Name(of.RegistryStr())}
	}

	// The credentials of Docker Hub are kept under another name than its API has.
	if last && hosts.IsRegistryItself(of.RegistryStr(), host) {
		result.account = of
	}

	return result, nil
}

// connectionTo reads the files that hosts.toml names.
func (c *Client) connectionTo(host hosts.Host) (connection, error) {
	result := connection{roots: c.roots, skipVerify: host.SkipVerify, dialTimeout: host.DialTimeout}

	if len(host.CAFiles) > 0 && result.roots == nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return connection{}, fmt.Errorf("reading the system's certificate authorities: %w", err)
		}

		result.roots = pool
	} else if len(host.CAFiles) > 0 {
		result.roots = result.roots.Clone()
	}

	for _, path := range host.CAFiles {
		if err := addCAFile(result.roots, path); err != nil {
			return connection{}, fmt.Errorf("host %s: %w", host.URL(), err)
		}
	}

	for _, files := range host.Clients {
		certificate, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
		if err != nil {
			return connection{}, fmt.Errorf("host %s: reading the client certificate: %w", host.URL(), err)
		}

		result.certificates = append(result.certificates, certificate)
	}

	return result, nil
}

func addCAFile(pool *x509.CertPool, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the registry's CA file: %w (create the file, or leave the setting empty)", err)
	}

	if !pool.AppendCertsFromPEM(data) {
		return invalid("CA file "+path, "no certificate is in it", "write it as PEM: -----BEGIN CERTIFICATE-----")
	}

	return nil
}

// route sends what is meant for a host where hosts.toml says. What it does not know, such as the storage that a host
// redirects to and token servers, it leaves alone.
type route struct {
	inner     http.RoundTripper
	host      hosts.Host
	namespace string
}

const apiPath = "/v2/"

// RoundTrip does one request.
func (r *route) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Host != r.host.Address {
		return r.inner.RoundTrip(request)
	}

	isPing := request.URL.Path == apiPath
	changed := request.Clone(request.Context())

	// For TLS it is found out whether the host may also be asked without; see guard.
	if r.host.Scheme == "http" {
		changed.URL.Scheme = r.host.Scheme
	}

	// Where the host itself says that something is, such as an upload, begins with its path already.
	if rest, ok := strings.CutPrefix(changed.URL.Path, apiPath); ok && r.host.Path+"/" != apiPath {
		changed.URL.Path, changed.URL.RawPath = r.host.Path+"/"+rest, ""
	}

	if r.namespace != "" {
		query := changed.URL.Query()
		query.Set("ns", r.namespace)
		changed.URL.RawQuery = query.Encode()
	}

	for name, values := range r.host.Header {
		changed.Header[name] = append([]string(nil), values...)
	}

	response, err := r.inner.RoundTrip(changed)
	if err == nil && isPing && response.StatusCode == http.StatusNotFound {
		// containerd does not ask a mirror whether it is a registry, so not all of them say so. Those without are asked
		// without credentials.
		response.StatusCode, response.Status = http.StatusOK, "200 OK"
	}

	return response, err
}

// tried is a host that could not do what it was asked.
type tried struct {
	host *endpoint
	err  error
}

// allFailed is the error when several hosts were asked in turn: of the kind of the registry's own, naming each.
func allFailed(subject string, tries []tried) error {
	last := tries[len(tries)-1]
	if len(tries) == 1 {
		return last.err
	}

	if at := slices.IndexFunc(tries, func(try tried) bool { return try.host.last }); at >= 0 {
		last = tries[at]
	}

	result := &Error{Kind: ErrTransient, Subject: subject, Fix: fixLater}

	if typed, ok := errors.AsType[*Error](last.err); ok {
		result.Kind, result.Fix = typed.Kind, typed.Fix
	}

	reasons := make([]string, 0, len(tries))

	for _, try := range tries {
		if errors.Is(try.err, errNoRanges) {
			// Another way of asking may work.
			return try.err
		}

		reasons = append(reasons, try.host.registry.RegistryStr()+": "+briefly(try.err))
	}

	result.Detail = strings.Join(reasons, "; ")

	return result
}

// briefly is an error without the subject and the fix that are said once for all.
func briefly(err error) string {
	typed, ok := errors.AsType[*Error](err)
	if !ok {
		return err.Error()
	}

	text := typed.Detail
	if text == "" {
		text = typed.Kind.Error()
	}

	if typed.Err != nil {
		text += ": " + typed.Err.Error()
	}

	return text
}
