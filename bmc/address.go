package bmc

import (
	"fmt"
	"net"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// Address is where a BMC is, and which of its systems is meant.
type Address struct {
	// Scheme is "http" or "https".
	Scheme string
	// Host is the host, an IPv6 address in brackets, with the port when the address has one.
	Host string
	// SystemPath is the system's @odata.id, as typed; empty means the BMC's only system.
	SystemPath string
}

// isRedfish knows the schemes of a BareMetalHost that are Redfish underneath (baremetal-operator v0.13.2,
// pkg/hardwareutils/bmc). They differ in how a machine is deployed, not in how its power is driven.
func isRedfish(scheme string) bool {
	switch scheme {
	case "redfish", "redfish-virtualmedia", "redfish-uefihttp",
		"idrac-redfish", "idrac-virtualmedia", "ilo5-redfish", "ilo5-virtualmedia":
		return true
	default:
		return false
	}
}

const (
	serviceRootPath = "/redfish/v1"
	systemsPath     = "/redfish/v1/Systems/"
	schemeHTTP      = "http"
	schemeHTTPS     = "https"

	dnsLabel = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
	dnsName  = `^` + dnsLabel + `(\.` + dnsLabel + `)*\.?$`
)

// ParseAddress reads spec.bmc.address of a BareMetalHost. Its errors are of kind Unsupported.
func ParseAddress(text string) (Address, error) {
	scheme, transport, err := addressScheme(text)
	if err != nil {
		return Address{}, err
	}
	_, rest, _ := strings.Cut(text, ":")
	// Before anything is made of the text: a password with a "/" or "?" in it would be taken for a path or a query, and
	// could be quoted.
	if strings.Contains(rest, "@") {
		return Address{}, addressError("holds a user name or password; put them into the Secret that " +
			"spec.bmc.credentialsName names, and take them out of the address")
	}
	// baremetal-operator accepts "redfish:host" too.
	if !strings.HasPrefix(rest, "//") {
		rest = "//" + rest
	}
	parsed, parseErr := url.Parse(scheme + ":" + rest)
	if parseErr != nil {
		// The parser's error quotes the text, which may hold a password.
		return Address{}, addressError("is not a valid URL; use redfish://HOST/redfish/v1/Systems/ID")
	}
	if err := checkHost(parsed); err != nil {
		return Address{}, err
	}
	system, err := systemPath(parsed)
	if err != nil {
		return Address{}, err
	}

	return Address{Scheme: transport, Host: parsed.Host, SystemPath: system}, nil
}

// addressScheme gives the scheme without its transport, and the transport.
func addressScheme(text string) (scheme, transport string, err error) {
	before, after, found := strings.Cut(text, ":")
	scheme, transport, hasTransport := strings.Cut(strings.ToLower(before), "+")
	if !hasTransport {
		transport = schemeHTTPS
	}
	// Without a scheme ("10.0.0.1", "bmc.example.com:623") baremetal-operator takes the address for IPMI.
	known := found && isRedfish(scheme)
	switch {
	case !known && found && strings.HasPrefix(after, "//"):
		return "", "", addressError(fmt.Sprintf(
			"has scheme %q, which is not supported yet; use a redfish:// address", before))
	case !known:
		return "", "", addressError("has no scheme, which means IPMI, and IPMI is not supported yet; " +
			"use a redfish:// address")
	case transport != schemeHTTP && transport != schemeHTTPS:
		return "", "", addressError(fmt.Sprintf("has transport %q; use +http, +https, or none for https", transport))
	}

	return scheme, transport, nil
}

func checkHost(parsed *url.URL) error {
	host := parsed.Hostname()
	if host == "" {
		return addressError("names no host; use redfish://HOST/redfish/v1/Systems/ID")
	}
	if net.ParseIP(strings.SplitN(host, "%", 2)[0]) == nil && !isDNSName(host) {
		return addressError(fmt.Sprintf("has host %q, which is neither an IP address nor a DNS name", host))
	}

	return nil
}

func isDNSName(host string) bool {
	matched, err := regexp.MatchString(dnsName, host)

	return err == nil && matched
}

// systemPath is the path of the system; the service root means that none is named.
func systemPath(parsed *url.URL) (string, error) {
	switch strings.TrimRight(parsed.Path, "/") {
	case "", serviceRootPath:
		return "", nil
	}
	trimmed := strings.TrimRight(parsed.Path, "/")
	if !strings.HasPrefix(trimmed, systemsPath) || path.Clean(trimmed) != trimmed {
		return "", addressError(fmt.Sprintf(
			"has path %q; it must be that of a system, %sID, or none when the BMC has one system",
			parsed.Path, systemsPath))
	}

	return parsed.EscapedPath(), nil
}

// HostPort names the BMC for Locks: two hosts behind one BMC have the same.
func (a Address) HostPort() string {
	parsed := url.URL{Host: a.Host}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{schemeHTTP: "80", schemeHTTPS: "443"}[a.Scheme]
	}

	return net.JoinHostPort(strings.ToLower(strings.TrimRight(parsed.Hostname(), ".")), port)
}

// Endpoint is the URL of the BMC, without a path.
func (a Address) Endpoint() string { return a.Scheme + "://" + a.Host }

func addressError(what string) error {
	return &Error{Kind: Unsupported, Op: "reading the BMC address", Detail: "spec.bmc.address " + what}
}
