package bmc_test

import (
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/bmc"
)

func TestParseAnyAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"ipmi://10.0.0.1":                                    "10.0.0.1:623 ADMINISTRATOR",
		"ipmi://10.0.0.1:6230?privilegelevel=OPERATOR":       "10.0.0.1:6230 OPERATOR",
		"IPMI://10.0.0.1/":                                   "10.0.0.1:623 ADMINISTRATOR",
		"libvirt://192.168.122.1:6233/":                      "192.168.122.1:6233 ADMINISTRATOR",
		"10.0.0.1":                                           "10.0.0.1:623 ADMINISTRATOR",
		"10.0.0.1:6230":                                      "10.0.0.1:6230 ADMINISTRATOR",
		"bmc.example.com":                                    "bmc.example.com:623 ADMINISTRATOR",
		"[fe80::1]:6230":                                     "[fe80::1]:6230 ADMINISTRATOR",
		"redfish://10.0.0.1/redfish/v1/Systems/1":            "10.0.0.1:443 ",
		"redfish+http://127.0.0.1:8000/redfish/v1/Systems/1": "127.0.0.1:8000 ",
	} {
		got, err := bmc.ParseAnyAddress(text)
		ipmi := !strings.HasSuffix(want, " ")
		if err != nil || got.HostPort()+" "+got.Privilege != want || (got.Protocol == bmc.IPMI) != ipmi {
			t.Errorf("%s: got %+v, %v, want %s", text, got, err, want)
		}
	}
}

func TestParseAnyAddressRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                     "has no scheme",
		"bmc.example.com:623":                  "use ipmi://HOST:PORT",
		"fe80::1":                              "use ipmi://HOST:PORT",
		"[fe80::1]":                            "use ipmi://HOST:PORT",
		"https://10.0.0.1":                     `scheme "https", which is unknown`,
		"redfish+ftp://h":                      `transport "ftp"`,
		"idrac://h":                            `scheme "idrac", which Metal3 has removed`,
		"ilo4-virtualmedia://h":                "which Metal3 has removed",
		"ilo5://h":                             "which Metal3 has removed",
		"irmc://h":                             "which Metal3 has removed",
		"ibmc+http://h":                        "which Metal3 has removed",
		"ipmi://user:hunter2@h":                "holds a user name or password",
		"ipmi://under_score":                   `host "under_score"`,
		"ipmi://10.0.0.1?privilegelevel=ROBOT": `privilegelevel "ROBOT"`,
	} {
		_, err := bmc.ParseAnyAddress(text)
		if err == nil || !strings.Contains(err.Error(), want) || bmc.KindOf(err) != bmc.Unsupported ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: got %v, want an error of kind Unsupported with %q", text, err, want)
		}
	}
}
