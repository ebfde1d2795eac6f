package bmc_test

import (
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	const system = "/redfish/v1/Systems/1"
	cases := map[string]struct {
		want     bmc.Address
		hostPort string
	}{
		"redfish://10.0.0.1/redfish/v1/Systems/1": {
			bmc.Address{Scheme: "https", Host: "10.0.0.1", SystemPath: system}, "10.0.0.1:443",
		},
		"redfish://10.0.0.1":             {bmc.Address{Scheme: "https", Host: "10.0.0.1"}, "10.0.0.1:443"},
		"redfish://10.0.0.1/":            {bmc.Address{Scheme: "https", Host: "10.0.0.1"}, "10.0.0.1:443"},
		"redfish://10.0.0.1/redfish/v1":  {bmc.Address{Scheme: "https", Host: "10.0.0.1"}, "10.0.0.1:443"},
		"redfish://10.0.0.1/redfish/v1/": {bmc.Address{Scheme: "https", Host: "10.0.0.1"}, "10.0.0.1:443"},
		"redfish+http://127.0.0.1:8000" + system: {
			bmc.Address{Scheme: "http", Host: "127.0.0.1:8000", SystemPath: system}, "127.0.0.1:8000",
		},
		"redfish+http://bmc" + system: {bmc.Address{Scheme: "http", Host: "bmc", SystemPath: system}, "bmc:80"},
		"redfish-virtualmedia+https://h" + system + "/": {
			bmc.Address{Scheme: "https", Host: "h", SystemPath: system + "/"}, "h:443",
		},
		"idrac-virtualmedia://h" + system: {bmc.Address{Scheme: "https", Host: "h", SystemPath: system}, "h:443"},
		"idrac-redfish://H.example.com":   {bmc.Address{Scheme: "https", Host: "H.example.com"}, "h.example.com:443"},
		"ilo5-redfish://h":                {bmc.Address{Scheme: "https", Host: "h"}, "h:443"},
		"redfish-uefihttp://h":            {bmc.Address{Scheme: "https", Host: "h"}, "h:443"},
		"REDFISH://h":                     {bmc.Address{Scheme: "https", Host: "h"}, "h:443"},
		"redfish:10.0.0.1":                {bmc.Address{Scheme: "https", Host: "10.0.0.1"}, "10.0.0.1:443"},
		"redfish://[2001:db8::1]:8443/": {
			bmc.Address{Scheme: "https", Host: "[2001:db8::1]:8443"}, "[2001:db8::1]:8443",
		},
		"redfish://[2001:db8::1]": {bmc.Address{Scheme: "https", Host: "[2001:db8::1]"}, "[2001:db8::1]:443"},
	}
	for text, c := range cases {
		got, err := bmc.ParseAddress(text)
		if err != nil || got != c.want || got.HostPort() != c.hostPort {
			t.Errorf("%s: got %+v (%s), %v; want %+v (%s)", text, got, got.HostPort(), err, c.want, c.hostPort)
		}
	}
}

func TestParseAddressRefuses(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"ipmi://10.0.0.1":               `scheme "ipmi", which is not supported yet; use a redfish:// address`,
		"libvirt://192.168.122.1:6233/": `scheme "libvirt"`,
		"https://10.0.0.1":              `scheme "https"`,
		"irmc://10.0.0.1":               `scheme "irmc"`,
		"ipmi+http://h":                 `scheme "ipmi+http"`,
		"10.0.0.1":                      "means IPMI",
		"10.0.0.1:6230":                 "means IPMI",
		"bmc.example.com":               "means IPMI",
		"":                              "means IPMI",
		"redfish+ftp://h":               `transport "ftp"`,
		"redfish://":                    "names no host",
		"redfish://under_score/redfish/v1/Systems/1":             `host "under_score"`,
		"redfish://user:hunter2@10.0.0.1/redfish/v1/Systems/1":   "holds a user name or password",
		"redfish://user:hunter2@10.0.0.1:bad/":                   "holds a user name or password",
		"redfish://user:12/hunter2@10.0.0.1/":                    "holds a user name or password",
		"redfish://10.0.0.1:bad/":                                "is not a valid URL",
		"redfish://10.0.0.1/redfish/v1/Managers/1":               "must be that of a system",
		"redfish://10.0.0.1/redfish/v1/Systems/":                 "must be that of a system",
		"redfish://10.0.0.1/redfish/v1/Systems/1/../../Managers": "must be that of a system",
	}
	for text, want := range cases {
		_, err := bmc.ParseAddress(text)
		if err == nil || !strings.Contains(err.Error(), want) || bmc.KindOf(err) != bmc.Unsupported {
			t.Errorf("%q: got %v, want an error of kind Unsupported with %q", text, err, want)

			continue
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error holds the password: %v", text, err)
		}
	}
}

func TestSameUUID(t *testing.T) {
	t.Parallel()
	const uuid = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
	cases := []struct {
		a, b string
		want bool
	}{
		{uuid, strings.ToUpper(uuid), true},
		{uuid, "596b9427-449e-a74f-8e91-f3527a1ef094", true},
		{uuid, "27946b59-9e44-4fa7-8e91-f3527a1ef095", false},
		{uuid, "", true},
		{"", uuid, true},
		{uuid, "00000000-0000-0000-0000-000000000000", true},
		{uuid, "ffffffff-ffff-ffff-ffff-ffffffffffff", true},
		{uuid, "Not Settable", true},
		{uuid, "fffefdfc-fffe-fffe-fffe-fffefdfcfbfa", false},
	}
	for _, c := range cases {
		if got := bmc.SameUUID(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: got %v, want %v", c.a, c.b, got, c.want)
		}
	}
}
