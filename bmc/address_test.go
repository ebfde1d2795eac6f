package bmc_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

const system = "/redfish/v1/Systems/1"

func redfishAt(scheme, host, path string) bmc.Address {
	return bmc.Address{Scheme: scheme, Host: host, SystemPath: path}
}

func ipmiAt(host string) bmc.Address {
	return bmc.Address{Protocol: bmc.IPMI, Scheme: "ipmi", Host: host, Privilege: "ADMINISTRATOR"}
}

// What baremetal-operator v0.13.2 (pkg/hardwareutils/bmc, NewAccessDetails) makes of 38 addresses. Where we differ, a
// comment says why.
func TestParseAddressAsBaremetalOperator(t *testing.T) {
	t.Parallel()
	operator := ipmiAt("10.0.0.1:6230")
	operator.Privilege = "OPERATOR"
	cases := []struct {
		text string
		want bmc.Address
		// fails is part of the error; baremetal-operator refuses these, too.
		fails string
	}{
		{text: "redfish://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		// Without a path Ironic takes the only system.
		{text: "redfish://10.0.0.1", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish://10.0.0.1/", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish://10.0.0.1/redfish/v1", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish://10.0.0.1/redfish/v1/", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish+http://127.0.0.1:8000" + system, want: redfishAt("http", "127.0.0.1:8000", system)},
		{text: "redfish+https://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "redfish-virtualmedia://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "redfish-virtualmedia+http://10.0.0.1" + system + "/", want: redfishAt("http", "10.0.0.1", system+"/")},
		// There its system is "", and not unset; to us both mean the only one.
		{text: "redfish-uefihttp://10.0.0.1", want: redfishAt("https", "10.0.0.1", "")},
		{text: "idrac-redfish://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "idrac-virtualmedia://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "ilo5-redfish://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "ilo5-virtualmedia://10.0.0.1" + system, want: redfishAt("https", "10.0.0.1", system)},
		{text: "ipmi://10.0.0.1", want: ipmiAt("10.0.0.1")},
		{text: "ipmi://10.0.0.1:6230", want: ipmiAt("10.0.0.1:6230")},
		{text: "ipmi://10.0.0.1:6230?privilegelevel=OPERATOR", want: operator},
		{text: "libvirt://192.168.122.1:6233/", want: ipmiAt("192.168.122.1:6233")},
		{text: "10.0.0.1", want: ipmiAt("10.0.0.1")},
		{text: "10.0.0.1:6230", want: ipmiAt("10.0.0.1:6230")},
		{text: "bmc.example.com", want: ipmiAt("bmc.example.com")},
		{text: "[fe80::1]:6230", want: ipmiAt("[fe80::1]:6230")},
		{text: "REDFISH://10.0.0.1", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish:10.0.0.1", want: redfishAt("https", "10.0.0.1", "")},
		{text: "redfish://[2001:db8::1]:8443/", want: redfishAt("https", "[2001:db8::1]:8443", "")},
		{text: "bmc.example.com:623", fails: "use redfish://HOST/redfish/v1/Systems/ID, or ipmi://HOST:PORT"},
		{text: "fe80::1", fails: "has no scheme"},
		{text: "[fe80::1]", fails: "has no scheme"},
		{text: "https://10.0.0.1", fails: `scheme "https", which is unknown; use redfish:// or ipmi://`},
		{text: "redfish+ftp://10.0.0.1", fails: `transport "ftp"; use +http, +https`},
		{text: "redfish://under_score" + system, fails: `host "under_score"`},
		{text: "idrac://10.0.0.1", fails: `scheme "idrac", which Metal3 has removed; use idrac-virtualmedia:// or idrac-redfish://`},
		{text: "ilo4://10.0.0.1", fails: `"ilo4", which Metal3 has removed; use redfish:// where the firmware has Redfish, or ipmi://`},
		{text: "ilo4-virtualmedia://10.0.0.1", fails: `"ilo4-virtualmedia", which Metal3 has removed; use redfish://`},
		{text: "ilo5://10.0.0.1", fails: `"ilo5", which Metal3 has removed; use redfish-virtualmedia:// or redfish://`},
		{text: "irmc://10.0.0.1", fails: `"irmc", which Metal3 has removed; use redfish-virtualmedia:// or redfish://`},
		{text: "ibmc+http://10.0.0.1", fails: `"ibmc+http", which Metal3 has removed; use redfish-virtualmedia:// or redfish://`},
		// It is taken there, and the user name and password are dropped silently: an operator would believe that they
		// are used, and they would be in every copy of the BareMetalHost.
		{text: "redfish://user:hunter2@10.0.0.1" + system, fails: "holds a user name or password"},
	}
	if len(cases) != 38 {
		t.Errorf("%d addresses, want 38", len(cases))
	}
	for _, c := range cases {
		got, err := bmc.ParseAddress(c.text)
		switch {
		case c.fails != "":
			wantAddressError(t, c.text, err, c.fails)
		case err != nil || got != c.want:
			t.Errorf("%s: got %+v, %v; want %+v", c.text, got, err, c.want)
		}
	}
}

// Every scheme of Redfish that baremetal-operator v0.13.2 registers is the same to us, with each of its transports.
func TestParseAddressKnowsEveryRedfishScheme(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{
		"redfish", "redfish-virtualmedia", "redfish-uefihttp",
		"idrac-redfish", "idrac-virtualmedia", "ilo5-redfish", "ilo5-virtualmedia",
	} {
		for suffix, transport := range map[string]string{"": "https", "+https": "https", "+http": "http"} {
			want := redfishAt(transport, "10.0.0.1:8000", system)
			if got, err := bmc.ParseAddress(scheme + suffix + "://10.0.0.1:8000" + system); err != nil || got != want {
				t.Errorf("%s%s: got %+v, %v, want %+v", scheme, suffix, got, err, want)
			}
		}
	}
}

func TestHostPort(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redfish://10.0.0.1":                     "10.0.0.1:443",
		"redfish+http://bmc" + system:            "bmc:80",
		"redfish+http://127.0.0.1:8000" + system: "127.0.0.1:8000",
		"idrac-redfish://H.example.com":          "h.example.com:443",
		"redfish://h.example.com./":              "h.example.com:443",
		"redfish://[2001:db8::1]":                "[2001:db8::1]:443",
		"redfish://[2001:DB8:0:0::1]:8443":       "[2001:db8::1]:8443",
		"ipmi:10.0.0.1":                          "10.0.0.1:623",
		"IPMI://10.0.0.1/":                       "10.0.0.1:623",
		"ipmi://[fe80::1]":                       "[fe80::1]:623",
		"ipmi://[fe80::1%25eth0]:6230":           "[fe80::1%eth0]:6230",
		"bmc.example.com":                        "bmc.example.com:623",
		"10.0.0.1:6230":                          "10.0.0.1:6230",
	} {
		address, err := bmc.ParseAddress(text)
		if err != nil || address.HostPort() != want {
			t.Errorf("%s: got %s, %v, want %s", text, address.HostPort(), err, want)
		}
	}
}

// What ParseAddress takes, the URL of Endpoint takes, too.
func TestEndpoint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"redfish://10.0.0.1" + system:             "https://10.0.0.1",
		"redfish+http://[fe80::1%25eth0]:8000":    "http://[fe80::1%25eth0]:8000",
		"redfish://[fe80::1%25en%20p0]" + system:  "https://[fe80::1%25en%20p0]",
		"redfish://[2001:db8::1]":                 "https://[2001:db8::1]",
		"redfish://bmc.example.com:8443" + system: "https://bmc.example.com:8443",
	} {
		address, err := bmc.ParseAddress(text)
		if err != nil || address.Endpoint() != want {
			t.Errorf("%s: got %s, %v, want %s", text, address.Endpoint(), err, want)

			continue
		}
		parsed, err := url.Parse(address.Endpoint() + "/redfish/v1")
		if err != nil || parsed.Host != address.Host {
			t.Errorf("%s: its endpoint is read as %v, %v", text, parsed, err)
		}
	}
}

func TestCheckBoot(t *testing.T) {
	t.Parallel()
	disk := bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI}
	for _, c := range []struct {
		got, want bmc.Boot
		kept      bool
	}{
		{disk, disk, true},
		{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeLegacy}, disk, false},
		{bmc.Boot{Target: bmc.BootDisk}, disk, true},
		{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeLegacy}, bmc.Boot{Target: bmc.BootDisk}, true},
		{bmc.Boot{Target: bmc.BootDisk, Mode: bmc.ModeUEFI, Continuous: true}, disk, false},
		{bmc.Boot{Target: bmc.BootPXE, Mode: bmc.ModeUEFI}, disk, false},
		{bmc.Boot{Target: bmc.BootNone, Mode: bmc.ModeLegacy}, bmc.Boot{Target: bmc.BootNone, Mode: bmc.ModeUEFI}, true},
	} {
		err := bmc.CheckBoot(bmc.BootState{Boot: c.got}, c.want)
		if (err == nil) != c.kept || err != nil && bmc.KindOf(err) != bmc.NotFollowed {
			t.Errorf("%+v for %+v: %v", c.got, c.want, err)
		}
	}
}

func TestParseAddressRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "has no scheme",
		"under_score":                           "has no scheme",
		"ipmi+http://h":                         `scheme "ipmi+http", which is unknown`,
		"ipmi://under_score":                    `host "under_score"`,
		"ipmi://":                               "names no host",
		"ipmi://10.0.0.1?privilegelevel=ROBOT":  `privilegelevel "ROBOT"`,
		"ipmi://10.0.0.1:0":                     "has port 0",
		"10.0.0.1:65536":                        "has port 65536",
		"redfish://10.0.0.1:99999":              "has port 99999",
		"redfish://":                            "names no host",
		"redfish+://h":                          `transport ""`,
		"redfish://10.0.0.1:bad/":               "is not a valid URL",
		"redfish://user:hunter2@10.0.0.1:bad/":  "holds a user name or password",
		"redfish://user:12/hunter2@10.0.0.1/":   "holds a user name or password",
		"redfish://user/hunter2@h/redfish/v1":   "holds a user name or password",
		"redfish://user:12?hunter2@h":           "holds a user name or password",
		"ipmi://user:12/hunter2@h":              "holds a user name or password",
		"ilo5://user:hunter2@h":                 "holds a user name or password",
		"user:hunter2@10.0.0.1":                 "holds a user name or password",
		"user:hunter2@h://x":                    "holds a user name or password",
		"redfish://h/redfish/v1/Managers/1":     "must be that of a system",
		"redfish://h/redfish/v1/Systems/":       "must be that of a system",
		"redfish://h" + system + "/../../Chass": "must be that of a system",
	} {
		_, err := bmc.ParseAddress(text)
		wantAddressError(t, text, err, want)
	}
}

func wantAddressError(t *testing.T, text string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || bmc.KindOf(err) != bmc.Unsupported {
		t.Errorf("%q: got %v, want an error of kind Unsupported with %q", text, err, want)

		return
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%q: the error holds the password: %v", text, err)
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
