package osimage

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/net/http/httpproxy"
)

// WithProxy reaches registries through a proxy, "http://host:port", "https://…" or "socks5://…", with the user and the
// password in it when it wants some. Hosts in NO_PROXY and loopback addresses are reached directly. An empty address
// means what HTTP_PROXY, HTTPS_PROXY and NO_PROXY say, which is also the default.
func WithProxy(address string) Option {
	return func(client *Client) error {
		if address == "" {
			return nil
		}

		parsed, err := url.Parse(address)
		if err != nil || parsed.Host == "" || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, parsed.Scheme) {
			// The address can hold a password, and so can what the parser says of it.
			return invalid("the proxy's address", "it is not one of a proxy", "write it as http://host:port or socks5://host:port")
		}

		client.proxy = (&httpproxy.Config{
			HTTPProxy: address, HTTPSProxy: address, NoProxy: cmp.Or(os.Getenv("NO_PROXY"), os.Getenv("no_proxy")),
		}).ProxyFunc()

		return nil
	}
}

// proxyFromEnvironment reads the environment now. An address that cannot be read would otherwise mean no proxy.
func proxyFromEnvironment() (func(*url.URL) (*url.URL, error), error) {
	config := httpproxy.FromEnvironment()

	for _, address := range []string{config.HTTPProxy, config.HTTPSProxy} {
		if address == "" {
			continue
		}

		if !strings.Contains(address, "://") {
			address = "http://" + address
		}

		if parsed, err := url.Parse(address); err != nil || parsed.Host == "" {
			return nil, invalid("the proxy of the environment", "its address cannot be read",
				"write HTTP_PROXY and HTTPS_PROXY as http://host:port")
		}
	}

	return config.ProxyFunc(), nil
}

var errProxy = errors.New("the proxy did not connect")

// checkProxy reads a proxy's answer to CONNECT: it is the proxy that refuses then, not the registry.
func checkProxy(_ context.Context, proxy *url.URL, request *http.Request, response *http.Response) error {
	subject := "proxy " + proxy.Host + " to " + request.Host

	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusProxyAuthRequired:
		return &Error{
			Kind: ErrUnauthorized, Subject: subject, Detail: "it wants a user and a password, or others",
			Fix: "write them into HTTPS_PROXY or --proxy, as http://user:password@host:port",
		}
	case http.StatusForbidden:
		return &Error{
			Kind: ErrUnauthorized, Subject: subject, Detail: "it refuses this registry",
			Fix: "have the registry allowed at the proxy, or add it to NO_PROXY",
		}
	default:
		return &Error{
			Kind: ErrTransient, Subject: subject, Detail: "it answered " + response.Status, Err: errProxy,
			Fix: "check that the proxy can reach the registry, then try again",
		}
	}
}
