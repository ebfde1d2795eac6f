package bmc

import (
	"fmt"
	"net"
	"net/url"
	"strings"
)

// Protocol is how a BMC is spoken to.
type Protocol string

// The protocols. The zero value is Redfish.
const (
	Redfish Protocol = ""
	IPMI    Protocol = "IPMI"
)

const (
	schemeIPMI = "ipmi"
	// portIPMI is the UDP port of RMCP+.
	portIPMI         = "623"
	defaultPrivilege = "ADMINISTRATOR"
)

// ParseAnyAddress reads spec.bmc.address of a BareMetalHost, of Redfish or IPMI. Its errors are of kind Unsupported.
func ParseAnyAddress(text string) (Address, error) {
	before, rest, found := strings.Cut(text, ":")
	scheme := strings.ToLower(before)
	switch {
	case found && (scheme == schemeIPMI || scheme == "libvirt"):
		return parseIPMI("//" + strings.TrimPrefix(rest, "//"))
	case found && isRedfish(strings.SplitN(scheme, "+", 2)[0]):
		return ParseAddress(text)
	case found && isRemoved(strings.SplitN(scheme, "+", 2)[0]):
		return Address{}, addressError(fmt.Sprintf("has scheme %q, which Metal3 has removed; "+
			"use redfish-virtualmedia:// or redfish://, for iDRAC idrac-virtualmedia://", before))
	case strings.Contains(text, "://"):
		return Address{}, addressError(fmt.Sprintf("has scheme %q, which is unknown; use redfish:// or ipmi://", before))
	}
	if err := checkBare(text); err != nil {
		return Address{}, err
	}

	return parseIPMI("//" + text)
}

func isRemoved(scheme string) bool {
	switch scheme {
	case "idrac", "ilo4", "ilo4-virtualmedia", "ilo5", "irmc", "ibmc":
		return true
	default:
		return false
	}
}

// checkBare refuses what baremetal-operator refuses without a scheme: a name with a port, IPv6 without one.
func checkBare(text string) error {
	host, _, err := net.SplitHostPort(text)
	switch {
	case err == nil && net.ParseIP(strings.SplitN(host, "%", 2)[0]) != nil:
		return nil
	case err != nil && net.ParseIP(text).To4() != nil, err != nil && isDNSName(text):
		return nil
	default:
		return addressError("has no scheme, and is not an IPv4 address, a DNS name, or an IP address with a port; " +
			"use ipmi://HOST:PORT")
	}
}

func parseIPMI(rest string) (Address, error) {
	parsed, err := url.Parse(schemeIPMI + ":" + rest)
	if err != nil {
		return Address{}, addressError("is not a valid URL; use ipmi://HOST:PORT")
	}
	if parsed.User != nil {
		return Address{}, addressError("holds a user name or password; put them into the Secret that " +
			"spec.bmc.credentialsName names, and take them out of the address")
	}
	if err := checkHost(parsed); err != nil {
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
