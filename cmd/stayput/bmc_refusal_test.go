package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metal3 "github.com/metal3-io/baremetal-operator/apis/metal3.io/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/stayput-dev/stayput/bmc"
)

// What cannot be meant is refused before the BMC, or the cluster, is asked: an identity that nothing could be compared with
// would switch its check off.
func TestBMCFlagsThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ flag, value, says string }{
		{"--expect-uuid", "1234", `--expect-uuid "1234" is no UUID`},
		{"--expect-uuid", oneUUID[1:], "use 32 hexadecimal digits"},
		{"--expect-uuid", oneUUID + "0", "is no UUID"},
		{"--expect-uuid", "00000000-0000-0000-0000-000000000000", "not all 0 or f"},
		{"--expect-uuid", "ffffffffffffffffffffffffffffffff", "not all 0 or f"},
		{"--expect-uuid", "", `--expect-uuid "" is empty`},
		{"--expect-uuid", "http://u:s3cret@h", "http://<redacted>@h"},
		{"--expect-serial", "", "is a variable of the shell unset?"},
		{"--expect-serial", "  ", `--expect-serial "  " is empty`},
		{"--credentials-file", "", "--credentials-file"},
		{"--bmc-ca-file", "", "--bmc-ca-file"},
		{"--namespace", "", "--namespace"},
		{"--timeout", "0s", "use a time above 0"},
		{"--timeout", "-1m", "--timeout -1m0s; use a time above 0"},
		{"--timeout", "http://u:s3cret@h", "<redacted>@h"},
		{"--ipmi-cipher-suite", "-4", "--ipmi-cipher-suite -4; use a number from 1 to 17"},
		{"--ipmi-cipher-suite", "99", "use a number from 1 to 17"},
		{"--ipmi-pause", "-1s", "use a time from 0s to 10s"},
		{"--ipmi-pause", "1h", "use a time from 0s to 10s"},
	} {
		b := newSlowBench(t)
		_, _, err := b.run("power", "host-1", "off", tt.flag+"="+tt.value)
		if err == nil || !strings.Contains(err.Error(), tt.says) || b.opened != 0 || len(b.machine.sent) != 0 {
			t.Errorf("%s=%q: %v, sent %v", tt.flag, tt.value, err, b.machine.sent)
		}
	}
	b := newSlowBench(t)
	for _, uuid := range []string{oneUUID, strings.ToUpper(oneUUID), strings.ReplaceAll(oneUUID, "-", "")} {
		if _, _, err := b.run("identify", "host-1", "--expect-uuid", uuid); err != nil {
			t.Errorf("%s: %v", uuid, err)
		}
	}
}

// untold is a machine whose BMC does not tell which it is.
type untold struct{ *obedientMachine }

func (untold) Identity(context.Context) (bmc.Identity, error) { return bmc.Identity{}, nil }

// What was asked for and cannot be shown is refused, before anything is changed; reading goes on.
func TestBMCAnIdentityThatIsNotTold(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--expect-uuid=" + oneUUID, "--expect-serial=1"} {
		b, _ := obedientBench(t)
		b.open = func(context.Context, bmc.Options) (bmc.Machine, error) {
			return untold{&obedientMachine{power: bmc.PowerOn, acted: func() { t.Errorf("%s: it acted", flag) }}}, nil
		}
		for _, args := range [][]string{
			{"power", "host-1", "off"},
			{"reset", "host-1", "--cycle"},
			{"reset", "host-1", "--dry-run"},
			{"boot", "host-1", "pxe"},
			{"media", "host-1", "insert", "http://h/i.iso"},
			{"media", "host-1", "eject"},
		} {
			if _, _, err := b.run(append(args, flag)...); bmc.KindOf(err) != bmc.Mismatch || !strings.Contains(err.Error(), "the BMC tells no") {
				t.Errorf("%v %s: %v", args, flag, err)
			}
		}
		for _, args := range [][]string{{"status", "host-1"}, {"boot", "host-1"}, {"media", "host-1"}} {
			if _, _, err := b.run(append(args, flag)...); err != nil {
				t.Errorf("%v %s: %v", args, flag, err)
			}
		}
		out, _, err := b.run("doctor", "host-1", flag)
		said := strings.Join(strings.Fields(out), " ")
		if err != nil || !strings.Contains(said, "identity unknown") || !strings.Contains(said, "the BMC tells no") {
			t.Errorf("doctor %s: %s%v", flag, out, err)
		}
	}
}

// No argument that is quoted shows a password.
func TestBMCQuotesNoPassword(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"http://u:hunter2@h/x.iso":      "http://<redacted>@h/x.iso",
		"u:hunt/er2@h":                  "<redacted>@h",
		"redfish://u:p@ss@h:8000":       "redfish://<redacted>@h:8000",
		"https://h/x.iso?sig=abc&x=y":   "https://h/x.iso?<redacted>",
		"http://h/x.iso":                "http://h/x.iso",
		"":                              "",
		"http://u:what?hunter2@h/x.iso": "http://<redacted>@h/x.iso",
	} {
		if got := redacted(word); got != want {
			t.Errorf("%s: got %s, want %s", word, got, want)
		}
	}
	b, _ := obedientBench(t)
	const url = "http://u:s3cret@h/x.iso"
	for _, args := range [][]string{
		{"media", "host-1", url},
		{"media", "host-1", "insrt", url},
		{"power", "host-1", url},
		{"boot", "host-1", url},
		{"boot", "host-1", "pxe", "--mode", url},
		{"status", "host-1", "--ipmi-pause", url},
		{"status", "host-1", "-o", url},
		{"status", "host-1", "-Ps3cret"},
		{"status", "host-1", "--=s3cret"},
		{"status", url},
		{"status", "u:s3cret@h"},
	} {
		// run itself fails when the password is shown.
		if _, _, err := b.run(args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	root := newRootCommand()
	root.SetArgs([]string{"bmc", url})
	if err := root.ExecuteContext(t.Context()); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
}

// YAML reads some words otherwise than they are written, and so would the BMC get another password.
func TestCredentialsFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"username: admin\npassword: correct horse\n":          "correct horse",
		"password: '0777'\nusername: \"admin\"\n":             "0777",
		"{username: admin, password: \"a # b\"}":              "a # b",
		"# of host-1\nusername: admin\npassword: 'x' # old\n": "x",
		"username: admin\npassword: a#b:c@d/e\\f\n":           `a#b:c@d/e\f`,
		"username: admin\npassword: |\n  text\n":              "text",
	} {
		got, err := parseCredentials([]byte(text))
		if err != nil || got != (bmc.Credentials{Username: "admin", Password: want}) {
			t.Errorf("%s: %q, %v", text, got.Password, err)
		}
	}
	for _, plain := range []string{
		"0777", "1e5", "0x1F", "1.50", "true", "False", "2001-01-01", "2001-12-14t21:59:43.10-05:00", "12345678", "1_000", "0o17", "0b11", ".inf",
		"yes", "NO", "on", "off", "y", "abc #def", "!!binary aGk=", "&a x", "[x]", "{a: b}", "",
		"null", "~", "*alias", "@x", "`x`", "%x", "- x",
	} {
		for _, text := range []string{"username: admin\npassword: " + plain + "\n", "password: x1\nusername: " + plain + "\n"} {
			got, err := parseCredentials([]byte(text))
			if err == nil {
				t.Errorf("%q gives %q", text, got.Password)
			} else if len(plain) > 3 && plain != "null" && strings.Contains(err.Error(), plain) {
				t.Errorf("%q is quoted: %v", plain, err)
			}
		}
	}
	for text, says := range map[string]string{
		"username: admin\npassword: 0777\n":                "line 2: password is not text for YAML, which would change it",
		"username: admin\npassword: abc #def\n":            `is cut at the "#"`,
		"username: admin\npassword:\n":                     "line 2: password is empty",
		"username: admin\n":                                "two fields username and password",
		"username: admin\npassword: a\npassword: b\n":      "once each",
		"username: admin\npasswort: s3cret\n":              "two fields",
		"username: admin\npassword: a\n---\nusername: b\n": "two fields",
		"[]": "two fields",
		"":   "two fields",
		"username: admin\npassword: a" + strings.Repeat("a", maxCredentialsFile): "two fields",
	} {
		if _, err := parseCredentials([]byte(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.60q: %v", text, err)
		}
	}
}

func FuzzCredentialsFile(f *testing.F) {
	for _, seed := range []string{"username: a\npassword: b", "{", "username: &x 1\npassword: *x", "? [a]\n: b", "a: !!binary =", "\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseCredentials(data)
		if (err == nil) != (got.Username != "" && got.Password != "") {
			t.Errorf("%q, %v", got.Password, err)
		}
	})
}

// failingReads is a machine of which some parts cannot be read.
type failingReads struct {
	*obedientMachine

	parts []string
	kind  bmc.Kind
}

func (m failingReads) fails(part string) error {
	if !slices.Contains(m.parts, part) {
		return nil
	}

	return &bmc.Error{Kind: m.kind, Op: "reading the " + part, Detail: "it is broken"}
}

func (m failingReads) Power(context.Context) (bmc.Power, error) { return m.power, m.fails("power") }

func (m failingReads) Identity(context.Context) (bmc.Identity, error) {
	return bmc.Identity{Serial: "1"}, m.fails("identity")
}

func (m failingReads) Actions(context.Context) ([]bmc.Action, error) { return nil, m.fails("actions") }

func (m failingReads) Boot(context.Context) (bmc.BootState, error) {
	return bmc.BootState{Boot: bmc.Boot{Target: bmc.BootNone}}, m.fails("boot")
}

// What can be read is shown, whatever else cannot.
func TestBMCStatusShowsWhatCanBeRead(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		parts []string
		kind  bmc.Kind
		fails bool
		shows []string
	}{
		"all": {shows: []string{"host-1 On no override 1"}},
		"no boot": {parts: []string{"boot"}, kind: bmc.Unsupported, shows: []string{
			"host-1 On ? 1", "Not read: boot override: reading the boot: it is broken",
		}},
		"only power": {parts: []string{"identity", "actions", "boot"}, kind: bmc.Transient, shows: []string{
			"host-1 On ?", "Not read: actions",
		}},
		"no power": {parts: []string{"power"}, kind: bmc.Transient, fails: true, shows: []string{
			"host-1 ? no override 1", "Not read: power: ",
		}},
		"other machine": {parts: []string{"identity"}, kind: bmc.Mismatch, fails: true},
	} {
		b, _ := obedientBench(t)
		b.open = func(context.Context, bmc.Options) (bmc.Machine, error) {
			return failingReads{&obedientMachine{power: bmc.PowerOn}, tt.parts, tt.kind}, nil
		}
		out, _, err := b.run("status", "host-1")
		if (err != nil) != tt.fails || tt.shows == nil && out != "" {
			t.Errorf("%s: %s%v", name, out, err)
		}
		for _, line := range tt.shows {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), line) {
				t.Errorf("%s: %q is not in\n%s", name, line, out)
			}
		}
		if tt.shows == nil {
			continue
		}
		out, _, _ = b.run("status", "host-1", "-o", "json")
		var answer statusAnswer
		if json.Unmarshal([]byte(out), &answer) != nil || len(answer.Errors) != len(tt.parts) || strings.Contains(out, "null") {
			t.Errorf("%s: %s", name, out)
		}
	}
}

// A program is given lists, also empty ones.
func TestBMCListsAreNeverNull(t *testing.T) {
	t.Parallel()
	b, _ := obedientBench(t)
	obedient := b.open
	b.open = func(ctx context.Context, options bmc.Options) (bmc.Machine, error) {
		machine, err := obedient(ctx, options)

		return silentConsole{machine}, err
	}
	for _, args := range [][]string{
		{"status", "host-1"},
		{"boot", "host-1"},
		{"media", "host-1"},
		{"log", "host-1"},
		{"console", "host-1"},
		{"doctor", "host-1"},
		{"power", "host-1", "on"},
		{"power", "host-1", "off", "--dry-run"},
	} {
		out, _, err := b.run(append(args, "-o", "json")...)
		if err != nil || strings.Contains(out, "null") {
			t.Errorf("%v: %s%v", args, out, err)
		}
	}
}

type silentConsole struct{ bmc.Machine }

func (silentConsole) ConsoleTail(context.Context, int) ([]string, error) { return nil, nil }

// What has to be there before a BMC can be asked has a check of its own, and says nothing about the BMC.
func TestBMCDoctorNamesWhatFailed(t *testing.T) {
	t.Parallel()
	fresh := func(t *testing.T) *bmcBench {
		t.Helper()
		b, _ := obedientBench(t)

		return b
	}
	for name, tt := range map[string]struct {
		args  []string
		setup func(b *bmcBench)
		check string
		unfit bool
	}{
		"unknown host":   {args: []string{"host-9"}, check: "host"},
		"no address":     {args: []string{"bare"}, check: "host"},
		"silent cluster": {args: []string{"host-1"}, setup: func(b *bmcBench) { b.gets(os.ErrDeadlineExceeded) }, check: "cluster"},
		"bad file":       {args: []string{"host-1", "--credentials-file", "odd.yaml"}, check: "credentials"},
		"no file":        {args: []string{"host-1", "--credentials-file", "none.yaml"}, check: "credentials"},
		"no Secret":      {args: []string{"host-1", "--credentials-secret", "none"}, check: "credentials"},
		"no CA":          {args: []string{"host-1", "--bmc-ca-file", "none"}, check: "certificate"},
		"odd address":    {args: []string{"ilo5://h", "--credentials-file", "credentials.yaml"}, check: "address"},
		"no ipmitool": {args: []string{"host-1"}, check: "ipmitool", setup: func(b *bmcBench) {
			b.fails(&bmc.Error{Kind: bmc.Unsupported, Op: "opening", Detail: "ipmitool is not installed; install it", Err: exec.ErrNotFound})
		}},
		"silent BMC": {args: []string{"host-1"}, check: "reachable", unfit: true, setup: func(b *bmcBench) {
			b.fails(&bmc.Error{Kind: bmc.Transient, Op: "opening", Detail: "no answer"})
		}},
		"refused": {args: []string{"host-1"}, check: "login", unfit: true, setup: func(b *bmcBench) {
			b.fails(&bmc.Error{Kind: bmc.Auth, Op: "opening", Detail: "401"})
		}},
	} {
		b := fresh(t)
		if tt.setup != nil {
			tt.setup(b)
		}
		args := append(make([]string, 0, 1+len(tt.args)), "doctor")
		for _, each := range tt.args {
			if strings.HasSuffix(each, ".yaml") {
				each = b.path(each)
			}
			args = append(args, each)
		}
		out, _, err := b.run(args...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if last := strings.Join(strings.Fields(lines[len(lines)-1]), " "); !strings.HasPrefix(last, tt.check+" failed ") {
			t.Errorf("%s: %s", name, out)
		}
		if want := map[bool]error{true: errUnfit, false: errUnexamined}[tt.unfit]; err == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// gets makes every read of the cluster fail.
func (b *bmcBench) gets(err error) {
	b.Helper()
	withWatch, ok := b.cluster.(client.WithWatch)
	if !ok {
		b.Fatal("the cluster cannot be watched")
	}
	b.cluster = interceptor.NewClient(withWatch, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return err
		},
	})
}

// fails makes opening fail.
func (b *bmcBench) fails(err error) {
	b.open = func(context.Context, bmc.Options) (bmc.Machine, error) { return nil, err }
}

// An error names what the command uses, and the fix.
func TestBMCErrorsNameTheirSource(t *testing.T) {
	t.Parallel()
	b := newSushyBench(t)
	address := b.emulator.Address(oneUUID)
	b.put("blank.yaml", "username: admin\npassword: ' '\n")
	bench := func(objects ...client.Object) {
		for _, each := range objects {
			if err := b.cluster.Create(t.Context(), each); err != nil {
				t.Fatal(err)
			}
		}
	}
	hostOf := func(name, secret string) *metal3.BareMetalHost {
		host := &metal3.BareMetalHost{ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name}}
		host.Spec.BMC = metal3.BMCDetails{Address: address, CredentialsName: secret}

		return host
	}
	secretOf := func(name, password string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "metal", Name: name},
			Data:       map[string][]byte{"username": []byte(bmcUser), "password": []byte(password)},
		}
	}
	bench(hostOf("asks", ""), hostOf("gone", "none"), hostOf("empty", "empty"), hostOf("wrong", "wrong"),
		secretOf("empty", ""), secretOf("wrong", "wrong"))
	const keys = "Secret metal/wrong, keys username and password"
	file := func(name string) []string { return []string{"--credentials-file", b.path(name)} }
	for name, tt := range map[string]struct {
		args []string
		file string
		says string
		// unsaid must not be said.
		unsaid string
	}{
		"a file":            {[]string{"status", address}, "wrong.yaml", b.path("wrong.yaml"), "spec.bmc"},
		"a file for a host": {[]string{"status", "host-1"}, "wrong.yaml", b.path("wrong.yaml"), "spec.bmc"},
		"a blank file":      {[]string{"status", address}, "blank.yaml", b.path("blank.yaml"), "spec.bmc"},
		"a Secret":          {[]string{"status", address, "--credentials-secret", "wrong"}, "", keys, "spec.bmc"},
		"a host's Secret":   {[]string{"status", "wrong"}, "", keys, "right system"},
		"an empty key": {
			[]string{"status", "empty"},
			"",
			"key password of Secret metal/empty, which spec.bmc.credentialsName of BareMetalHost metal/empty names", "right",
		},
		"no Secret":  {[]string{"status", "gone"}, "", "create it, with keys username and password", "right"},
		"no name":    {[]string{"status", "asks"}, "", "BareMetalHost metal/asks has no spec.bmc.credentialsName; set it", "right"},
		"an address": {[]string{"status", "redfish://h/x"}, "credentials.yaml", "the address has path", "spec.bmc"},
		"an address with a user": {
			[]string{"status", "redfish://u@h"}, "credentials.yaml", "put them into a file, for --credentials-file", "spec.bmc",
		},
		"a slot":          {[]string{"media", "host-1", "eject", "--slot", "CD9"}, "", `--slot "CD9"; the BMC has Cd, `, "right system"},
		"a slot, no verb": {[]string{"media", "host-1", "--slot", "CD"}, "", `--slot "CD" belongs to insert URL or eject`, `""`},
	} {
		args := tt.args
		if tt.file != "" {
			args = append(args, file(tt.file)...)
		}
		_, _, err := b.run(args...)
		if err == nil || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), tt.unsaid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the API server forbids names the right to ask for.
func TestBMCForbidden(t *testing.T) {
	t.Parallel()
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "x", errFlag)
	}
	b, acts := obedientBench(t)
	b.leases = leasesOf{interceptor.NewClient(b.leaseStore, interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return forbidden("leases")
		},
	})}
	_, _, err := b.run("power", "host-1", "off")
	const right = "rights to get, create and update leases.coordination.k8s.io in namespace metal"
	if err == nil || !strings.Contains(err.Error(), right) || len(*acts) != 0 {
		t.Errorf("leases: %v", err)
	}
	b.gets(forbidden("baremetalhosts"))
	if _, _, err := b.run("status", "host-1"); err == nil || !strings.Contains(err.Error(), "right to get baremetalhosts.metal3.io") {
		t.Errorf("host: %v", err)
	}
	_, _, err = b.run("status", obedientAddress, "--credentials-secret", "s")
	if err == nil || !strings.Contains(err.Error(), "right to get secrets") {
		t.Errorf("Secret: %v", err)
	}
}
