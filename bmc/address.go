package bmc

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Protocol is how a BMC is spoken to.
type Protocol string

// The protocols. The zero value is Redfish.
const (
	Redfish Protocol = ""
	IPMI    Protocol = "IPMI"
)

// Address is where a BMC is, how it is spoken to, and which of its systems is meant.
type Address struct {
	Protocol Protocol
	// Scheme is "http" or "https", and "ipmi" with IPMI.
	Scheme string
	// Host is the host, an IPv6 address in brackets, with the port when the address has one.
	Host string
	// SystemPath is the system's @odata.id, as typed; empty means the BMC's only system, and always is with IPMI.
	SystemPath string
	// Privilege is the level of an IPMI session: CALLBACK, USER, OPERATOR or ADMINISTRATOR. Empty with Redfish.
	Privilege string
}

const (
	serviceRootPath = "/redfish/v1"
	systemsPath     = "/redfish/v1/Systems/"
	schemeHTTP      = "http"
	schemeHTTPS     = "https"
	schemeIPMI      = "ipmi"
	// portIPMI is the UDP port of RMCP+.
	portIPMI         = "623"
	defaultPrivilege = "ADMINISTRATOR"

	dnsLabel = `[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?`
	dnsName  = `^` + dnsLabel + `(\.` + dnsLabel + `)*\.?$`
)

// ParseAddress reads spec.bmc.address of a BareMetalHost. An address without a scheme is one of IPMI, as
// baremetal-operator has it. Its errors are of kind Unsupported, and hold nothing that may be a password.
//
// It takes what baremetal-operator v0.13.2 takes, but for four things. An "@" is refused, where baremetal-operator
// silently drops a user name and password; so are a path that is not a system's, a port that cannot be one, and a
// privilege level that IPMI does not have.
func ParseAddress(text string) (Address, error) {
	// Before anything is made of the text: a password with a "/" or "?" in it would be taken for a path or a query, and
	// could be quoted.
	if strings.Contains(text, "@") {
		return Address{}, addressError("holds a user name or password; put them into the Secret that " +
			"spec.bmc.credentialsName names, and take them out of the address")
	}
	scheme, rest, found := strings.Cut(text, ":")
	name, transport, hasTransport := strings.Cut(strings.ToLower(scheme), "+")
	instead := replacement(name)
	switch {
	case found && isRedfish(name):
		if !hasTransport {
			transport = schemeHTTPS
		}

		return parseRedfish(transport, rest)
	case found && isIPMI(name) && !hasTransport:
		return parseIPMI(rest)
	case found && instead != "":
		return Address{}, addressError(fmt.Sprintf("has scheme %q, which Metal3 has removed; use %s", scheme, instead))
	case strings.Contains(text, "://"):
		return Address{}, addressError(fmt.Sprintf("has scheme %q, which is unknown; use redfish:// or ipmi://", scheme))
	case !isBare(text):
		return Address{}, addressError("has no scheme, and is not an IPv4 address, a DNS name, or an IP address with a port; " +
			"use redfish://HOST/redfish/v1/Systems/ID, or ipmi://HOST:PORT")
	default:
		return parseIPMI(text)
	}
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

// isIPMI: "libvirt" is what tests of Metal3 call IPMI.
func isIPMI(scheme string) bool { return scheme == schemeIPMI || scheme == "libvirt" }

// replacement is what to use in place of a scheme that baremetal-operator had once: ilo4 and ilo5 until v0.11, irmc
// until v0.12. It is empty for others.
func replacement(scheme string) string {
	switch scheme {
	case "idrac":
		return "idrac-virtualmedia:// or idrac-redfish://"
	case "ilo5", "irmc", "ibmc":
		return "redfish-virtualmedia:// or redfish://"
	case "ilo4", "ilo4-virtualmedia":
		return "redfish:// where the firmware has Redfish, or ipmi://"
	default:
		return ""
	}
}

func parseRedfish(transport, rest string) (Address, error) {
	if transport != schemeHTTP && transport != schemeHTTPS {
		return Address{}, addressError(fmt.Sprintf("has transport %q; use +http, +https, or none for https", transport))
	}
	parsed, err := parseURL(schemeHTTPS, rest, "redfish://HOST/redfish/v1/Systems/ID")
	if err != nil {
		return Address{}, err
	}
	system, err := systemPath(parsed)
	if err != nil {
		return Address{}, err
	}

	return Address{Scheme: transport, Host: parsed.Host, SystemPath: system}, nil
}

func parseIPMI(rest string) (Address, error) {
	parsed, err := parseURL(schemeIPMI, rest, "ipmi://HOST, or ipmi://HOST:PORT")
	if err != nil {
		return Address{}, err
	}
	privilege := strings.ToUpper(parsed.Query().Get("privilegelevel"))
	switch privilege {
	case "":
		privilege = defaultPrivilege
	case "CALLBACK", "USER", "OPERATOR", defaultPrivilege:
	default:
		return Address{}, addressError(fmt.Sprintf("has privilegelevel %q; use ADMINISTRATOR or OPERATOR", privilege))
	}

	return Address{Protocol: IPMI, Scheme: schemeIPMI, Host: parsed.Host, Privilege: privilege}, nil
}

// parseURL reads what follows a scheme. baremetal-operator takes "redfish:host", without slashes, too.
func parseURL(scheme, rest, use string) (*url.URL, error) {
	if !strings.HasPrefix(rest, "//") {
		rest = "//" + rest
	}
	// The parser's error quotes the text.
	parsed, err := url.Parse(scheme + ":" + rest)
	if err != nil {
		return nil, addressError("is not a valid URL; use " + use)
	}
	host := parsed.Hostname()
	if host == "" {
		return nil, addressError("names no host; use " + use)
	}
	if net.ParseIP(strings.SplitN(host, "%", 2)[0]) == nil && !isDNSName(host) {
		return nil, addressError(fmt.Sprintf("has host %q, which is neither an IP address nor a DNS name", host))
	}
	if port := parsed.Port(); port != "" {
		if number, err := strconv.ParseUint(port, 10, 16); err != nil || number == 0 {
			return nil, addressError(fmt.Sprintf("has port %s; use one from 1 to 65535, or none", port))
		}
	}

	return parsed, nil
}

// isBare tells what baremetal-operator takes without a scheme. It takes a name with a port for a scheme, and cannot tell
// where an IPv6 address without a port ends.
func isBare(text string) bool {
	host, _, err := net.SplitHostPort(text)
	if err == nil {
		return net.ParseIP(strings.SplitN(host, "%", 2)[0]) != nil
	}

	return net.ParseIP(text).To4() != nil || isDNSName(text)
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

// HostPort names the BMC for Locks: two hosts behind one BMC have the same. A BMC that is spoken to by Redfish and by IPMI
// has two.
func (a Address) HostPort() string {
	parsed := url.URL{Host: a.Host}
	port := parsed.Port()
	if port == "" {
		port = map[string]string{schemeHTTP: "80", schemeHTTPS: "443", schemeIPMI: portIPMI}[a.Scheme]
	}
	host := strings.ToLower(strings.TrimRight(parsed.Hostname(), "."))
	// One IPv6 address can be written in several ways.
	if ip, err := netip.ParseAddr(host); err == nil {
		host = ip.String()
	}

	return net.JoinHostPort(host, port)
}

// Endpoint is the URL of the BMC, without a path. The zone of an IPv6 address is escaped in it (RFC 6874).
func (a Address) Endpoint() string { return (&url.URL{Scheme: a.Scheme, Host: a.Host}).String() }

func addressError(what string) error {
	return &Error{Kind: Unsupported, Op: "reading the BMC address", Detail: "spec.bmc.address " + what}
}
