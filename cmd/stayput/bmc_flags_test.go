package main

import (
	"context"
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/controllers/hosts"
)

// What the flags, and the host, say reaches the driver; and the doctor says what is less than trust.
func TestBMCFlagsReachTheDriver(t *testing.T) {
	t.Parallel()
	b, _ := obedientBench(t)
	obedient := b.open
	var got bmc.Options
	b.open = func(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
		got = options

		return obedient(ctx, options)
	}
	for _, tt := range []struct {
		args  []string
		ok    func(o bmc.Options) bool
		trust string
	}{
		{nil, func(o bmc.Options) bool {
			return !o.LegacyTLS && !o.SkipVerify && o.CipherSuite == 0 && o.Pause == 0
		}, "certificate ok verified"},
		{
			[]string{"--bmc-legacy-tls"},
			func(o bmc.Options) bool { return o.LegacyTLS && !o.SkipVerify },
			"certificate warning verified, but old cipher suites",
		},
		{
			[]string{"--bmc-skip-verify"},
			func(o bmc.Options) bool { return o.SkipVerify && !o.LegacyTLS },
			"certificate warning not verified",
		},
		{
			[]string{"--ipmi-cipher-suite", "17", "--ipmi-pause", "5s"},
			func(o bmc.Options) bool { return o.CipherSuite == 17 && o.Pause == 5*time.Second },
			"certificate ok",
		},
		{
			[]string{"--expect-uuid", oneUUID},
			func(o bmc.Options) bool { return o.UUID == oneUUID && o.Credentials.Password == bmcPassword },
			"certificate ok",
		},
	} {
		out, _, err := b.run(append([]string{"doctor", "host-1"}, tt.args...)...)
		if err != nil || !tt.ok(got) || !strings.Contains(strings.Join(strings.Fields(out), " "), tt.trust) {
			t.Errorf("%v: %+v, %v, want %q in\n%s", tt.args, got, err, tt.trust, out)
		}
	}

	var host metal3.BareMetalHost
	if err := b.cluster.Get(t.Context(), types.NamespacedName{Namespace: "metal", Name: "host-1"}, &host); err != nil {
		t.Fatal(err)
	}
	host.Spec.BMC.DisableCertificateVerification = true
	host.Annotations = map[string]string{
		hosts.AnnotationLegacyTLS: "true", hosts.AnnotationCipherSuite: "17", hosts.AnnotationPause: "5s",
	}
	if err := b.cluster.Update(t.Context(), &host); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.run("identify", "host-1"); err != nil || !got.SkipVerify || !got.LegacyTLS || got.CipherSuite != 17 ||
		got.Pause != 5*time.Second {
		t.Errorf("a host that says how its BMC is: %+v, %v", got, err)
	}
	// A flag is more than an annotation.
	if _, _, err := b.run("identify", "host-1", "--ipmi-cipher-suite", "3"); err != nil || got.CipherSuite != 3 {
		t.Errorf("a flag: %+v, %v", got, err)
	}
}

// console is a machine whose BMC keeps the console.
type console struct{ bmc.Machine }

func (console) ConsoleTail(_ context.Context, lines int) ([]string, error) {
	return []string{"booting", "Kernel panic - not syncing"}[max(0, 2-lines):], nil
}

func TestBMCConsole(t *testing.T) {
	t.Parallel()
	b, _ := obedientBench(t)
	_, _, err := b.run("console", "host-1")
	if bmc.KindOf(err) != bmc.Unsupported {
		t.Errorf("a BMC that keeps no console: %v", err)
	}
	obedient := b.open
	b.open = func(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
		machine, err := obedient(ctx, options)

		return console{machine}, err
	}
	for args, want := range map[string]string{
		"":                      "booting\nKernel panic - not syncing\n",
		"--lines 1":             "Kernel panic - not syncing\n",
		"--lines 1 -o json":     "[\n  \"Kernel panic - not syncing\"\n]\n",
		"--lines 0":             "",
		"--lines 1001 -o table": "",
	} {
		out, _, err := b.run(append([]string{"console", "host-1"}, strings.Fields(args)...)...)
		if out != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v, want %q", args, out, err, want)
		}
	}
}
