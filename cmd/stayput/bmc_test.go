package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/stayput-dev/stayput/bmc"
	"github.com/stayput-dev/stayput/bmc/connect"
	emulator "github.com/stayput-dev/stayput/test/lab/redfish"
)

const (
	bmcUser     = "admin"
	bmcPassword = "correct horse"
	oneUUID     = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
	otherUUID   = "11111111-9e44-4fa7-8e91-f3527a1ef094"
)

// bmcBench is a BMC, and a cluster that knows the host of its machine.
type bmcBench struct {
	*testing.T

	cluster client.Client
	leases  coordinationclient.LeasesGetter
	// leaseStore is where they are.
	leaseStore client.WithWatch
	open       func(context.Context, bmc.Options) (bmc.Machine, error)
	password   string
	dir        string
	opened     int
	// hears, when set, is told what is said on the standard error output.
	hears listener
	// context is the command's; nil: the test's.
	context context.Context //nolint:containedctx // a test's
	clock   clock.Clock
	poll    time.Duration
}

type listener func(text string)

func (l listener) Write(text []byte) (int, error) {
	if l != nil {
		l(string(text))
	}

	return len(text), nil
}

func newBMCBench(t *testing.T, address, password string) *bmcBench {
	t.Helper()
	host := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "host-1", UID: "u-1"}}
	host.Spec.Online = true
	host.Spec.BMC = metal3.BMCDetails{Address: address, CredentialsName: "host-1-bmc"}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "host-1-bmc"},
		Data:       map[string][]byte{"username": []byte(bmcUser + "\n"), "password": []byte(password + "\n")},
	}
	bare := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: "bare"}}
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &bmcBench{
		T: t, cluster: fakeCluster(t, host, secret, bare), open: connect.Open,
		leaseStore: fake.NewClientBuilder().WithScheme(scheme).Build(),
		password:   password, dir: t.TempDir(), clock: clock.RealClock{},
	}
	b.leases = leasesOf{b.leaseStore}
	b.put("credentials.yaml", fmt.Sprintf("username: %s\npassword: %s\n", bmcUser, password))
	b.put("wrong.yaml", fmt.Sprintf("username: %s\npassword: wrong\n", bmcUser))
	b.put("odd.yaml", "username: admin\npasswort: s3cret\n")

	return b
}

// sushyBench is one with sushy-tools.
type sushyBench struct {
	*bmcBench

	emulator *emulator.Emulator
}

func newSushyBench(t *testing.T) *sushyBench {
	t.Helper()
	started := emulator.StartFake(t, bmcUser, bmcPassword, emulator.FakeSystem{UUID: oneUUID, Name: "one", PoweredOn: true})
	b := newBMCBench(t, started.Address(oneUUID), bmcPassword)
	b.put("ca.crt", string(started.CA()))

	return &sushyBench{bmcBench: b, emulator: started}
}

func (b *sushyBench) run(args ...string) (stdout, stderr string, err error) {
	b.Helper()

	return b.bmcBench.run(append(args, "--bmc-ca-file", b.path("ca.crt"))...)
}

func (b *bmcBench) put(name, text string) {
	b.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *bmcBench) path(name string) string { return filepath.Join(b.dir, name) }

// run runs `stayput bmc`; what it printed, on both streams, holds no password.
func (b *bmcBench) run(args ...string) (stdout, stderr string, err error) {
	b.Helper()
	command := newBMCCommand(outside{
		connect: func(*rolloutFlags) (client.Client, string, error) { return b.cluster, "metal", nil },
		leases:  func(*rolloutFlags) (coordinationclient.LeasesGetter, error) { return b.leases, nil },
		open: func(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
			b.opened++

			return b.open(ctx, options)
		},
		in: strings.NewReader(""), clock: b.clock, poll: b.poll,
	})
	command.SilenceUsage, command.SilenceErrors = true, true
	var out, errOut bytes.Buffer
	command.SetOut(&out)
	command.SetErr(io.MultiWriter(&errOut, b.hears))
	command.SetArgs(args)
	ctx := b.context
	if ctx == nil {
		ctx = b.Context()
	}
	err = command.ExecuteContext(ctx)
	for _, secret := range []string{b.password, "s3cret"} {
		if strings.Contains(out.String()+errOut.String()+fmt.Sprint(err), secret) {
			b.Errorf("%v tells the password", args)
		}
	}

	return out.String(), errOut.String(), err
}

func (b *sushyBench) power() bmc.Power {
	b.Helper()
	out, _, err := b.run("status", "host-1", "-o", "json")
	var answer statusAnswer
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil {
		b.Fatal(out, err)
	}

	return answer.Power
}

func TestBMCCommandsOnSushyTools(t *testing.T) {
	t.Parallel()
	b := newSushyBench(t)

	// An address with a file, and a host with its own Secret, lead to the same machine.
	for _, target := range [][]string{
		{b.emulator.Address(oneUUID), "--credentials-file", b.path("credentials.yaml")},
		{b.emulator.Address(oneUUID), "--credentials-secret", "host-1-bmc"},
		{"host-1"},
		{"metal/host-1"},
	} {
		out, _, err := b.run(append([]string{"identify"}, target...)...)
		if err != nil || !strings.Contains(out, oneUUID) {
			t.Errorf("identify %v: %s%v", target, out, err)
		}
	}

	// A dry run sends nothing; what follows is the real thing.
	out, said, err := b.run("reset", "host-1", "--cycle", "--dry-run")
	if err != nil || !strings.Contains(out, "WOULD SEND") || !strings.Contains(out, "ForceOff") {
		t.Errorf("dry run: %s%s%v", out, said, err)
	}
	if resets, err := b.emulator.Resets(oneUUID); err != nil || resets != 0 || b.power() != bmc.PowerOn {
		t.Errorf("after the dry run: %d resets, %v", resets, err)
	}

	out, said, err = b.run("power", "host-1", "off", "-o", "json")
	var report reportAnswer
	if err != nil || json.Unmarshal([]byte(out), &report) != nil || report.Observed != bmc.PowerOff || report.Result != "Done" {
		t.Errorf("off: %s%s%v", out, said, err)
	}
	if !strings.Contains(said, "Metal3 switches it on again") {
		t.Errorf("off of a host that shall be online: %s", said)
	}
	if out, _, err = b.run("power", "host-1", "off"); err != nil || !strings.Contains(out, " - ") {
		t.Errorf("off again: %s%v", out, err)
	}
	if out, _, err = b.run("reset", "host-1"); err != nil || b.power() != bmc.PowerOn {
		t.Errorf("reset of a machine that is off: %s%v", out, err)
	}
}

func TestBMCCommandsBesidesPowerOnSushyTools(t *testing.T) {
	t.Parallel()
	b := newSushyBench(t)

	// sushy-tools' fake takes every override for a continuous one, and so it is told.
	out, _, err := b.run("boot", "host-1", "pxe", "--continuous")
	if err != nil || !strings.Contains(out, "PXE") {
		t.Errorf("boot: %s%v", out, err)
	}
	if out, _, err = b.run("boot", "host-1", "disk"); bmc.KindOf(err) != bmc.NotFollowed {
		t.Errorf("an override that is kept otherwise: %s%v", out, err)
	}
	if out, _, err = b.run("media", "host-1"); err != nil || !strings.Contains(out, "Cd") {
		t.Errorf("media: %s%v", out, err)
	}
	if _, _, err = b.run("log", "host-1"); bmc.KindOf(err) != bmc.Unsupported {
		t.Errorf("log of a BMC without one: %v", err)
	}

	out, _, err = b.run("doctor", "host-1", "--expect-uuid", oneUUID)
	if err != nil || !strings.Contains(out, "power actions") || strings.Contains(out, string(verdictFailed)) {
		t.Errorf("doctor: %s%v", out, err)
	}
	out, _, err = b.run("doctor", "host-1", "--expect-uuid", otherUUID)
	if err == nil || !strings.Contains(out, "identity") || !strings.Contains(out, string(verdictFailed)) {
		t.Errorf("doctor of another machine: %s%v", out, err)
	}
}

func TestBMCCommandsRefuse(t *testing.T) {
	t.Parallel()
	b := newSushyBench(t)
	address := b.emulator.Address(oneUUID)
	file := []string{"--credentials-file", b.path("credentials.yaml")}
	for name, test := range map[string]struct {
		args []string
		says string
		// reaches tells that the BMC has to be asked to find it out.
		reaches bool
	}{
		"a word":                 {args: []string{"power", "host-1", "of"}, says: `"of"; use on, off or shutdown`},
		"a boot target":          {args: []string{"boot", "host-1", "floppy"}, says: `"floppy"; use one of none, pxe`},
		"a mode":                 {args: []string{"boot", "host-1", "pxe", "--mode", "bios"}, says: "use UEFI or Legacy"},
		"a mode without target":  {args: []string{"boot", "host-1", "--mode", "UEFI"}, says: "belong to a target"},
		"a media word":           {args: []string{"media", "host-1", "insert"}, says: "use insert URL, eject"},
		"two ways to restart":    {args: []string{"reset", "host-1", "--soft", "--cycle"}, says: "soft cycle"},
		"a format":               {args: []string{"status", "host-1", "-o", "text"}, says: "table, json or yaml"},
		"lines":                  {args: []string{"log", "host-1", "--lines", "0"}, says: "--lines 0"},
		"two sources":            {args: append([]string{"status", address, "--credentials-secret", "s"}, file...), says: "not both"},
		"nobody to ask":          {args: []string{"status", address}, says: "--credentials-file or --credentials-secret"},
		"a file with an odd key": {args: []string{"status", address, "--credentials-file", b.path("odd.yaml")}, says: "username and password"},
		"a removed scheme":       {args: append([]string{"status", "ilo5://10.0.0.1"}, file...), says: "use redfish-virtualmedia://"},
		"a name with a port":     {args: append([]string{"status", "bmc.example.com:623"}, file...), says: "ipmi://HOST:PORT"},
		"an address like a host": {args: []string{"status", "10.0.0.1"}, says: "or ipmi://HOST"},
		"no such host":           {args: []string{"status", "host-9"}, says: "metal/host-9"},
		"a host without a BMC":   {args: []string{"status", "bare"}, says: "set spec.bmc.address"},
		"an address with a password": {
			args: append([]string{"status", "redfish://admin:s3cret@127.0.0.1/redfish/v1/Systems/1"}, file...), says: "user name or password",
		},
		"a wrong password": {
			args: []string{"status", address, "--credentials-file", b.path("wrong.yaml")}, says: "Auth: correct the credentials", reaches: true,
		},
		"another machine": {
			args: []string{"reset", "host-1", "--expect-uuid", otherUUID}, says: "Mismatch", reaches: true,
		},
	} {
		// One after the other: they count what was opened.
		before := b.opened
		_, _, err := b.run(test.args...)
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
		if reached := b.opened > before; reached != test.reaches {
			t.Errorf("%s: the BMC was asked: %v", name, reached)
		}
	}
	if resets, err := b.emulator.Resets(oneUUID); err != nil || resets != 0 {
		t.Errorf("%d resets, %v", resets, err)
	}
}
