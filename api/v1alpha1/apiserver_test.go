package v1alpha1_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/test/apiserver"
)

// shared is a kube-apiserver with the CRDs of this repository.
var shared apiserver.Shared //nolint:gochecknoglobals // one server for the package

func TestMain(m *testing.M) { os.Exit(shared.Main(m)) }

// api is a client of the server.
func api(t *testing.T) client.Client {
	t.Helper()

	server := shared.Server(t)

	return server.Client
}

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

	smallestPool = `
apiVersion: stayput.dev/v1alpha1
kind: HostPool
metadata: {name: gpu, namespace: default}
spec:
  hostSelector: {matchLabels: {pool: gpu}}
  release: {os: {image: "registry.example/os/node:1.1.0"}}
`
	smallestUpdate = `
apiVersion: stayput.dev/v1alpha1
kind: NodeUpdate
metadata: {name: node-1}
spec:
  door: {kind: HostPool, namespace: metal, name: gpu, host: host-1}
  attempt: a1
  release: {os: {image: "registry.example/os/node@` + digestA + `", version: 1.1.0}}
`
)

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()

	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}

	return object
}

// set sets the field at a dotted path to a value that is written in YAML; an empty one removes it.
func set(t *testing.T, object *unstructured.Unstructured, path, value string) {
	t.Helper()

	fields := strings.Split(path, ".")
	if value == "" {
		unstructured.RemoveNestedField(object.Object, fields...)

		return
	}

	var parsed any
	if err := yaml.Unmarshal([]byte(value), &parsed); err != nil {
		t.Fatal(err)
	}

	if number, ok := parsed.(float64); ok {
		parsed = int64(number)
	}

	if err := unstructured.SetNestedField(object.Object, parsed, fields...); err != nil {
		t.Fatal(err)
	}
}

type refusal struct {
	object, field, value string
	// want is what the message must hold beside the field.
	want string
	// path is the field in the message, where it differs from field.
	path string
}

func TestBadObjectsAreRefusedWithOneMessage(t *testing.T) {
	t.Parallel()

	const duration = "must be a duration from 1s to 24h, as in 90s, 15m or 1h30m"

	tests := map[string]refusal{
		"empty selector":          {smallestPool, "spec.hostSelector", `{}`, "give it at least one label or expression", ""},
		"selector with no labels": {smallestPool, "spec.hostSelector", `{matchLabels: {}}`, "give it at least one label or expression", ""},
		"no selector":             {smallestPool, "spec.hostSelector", "", "Required value", ""},
		"selector's operator": {
			smallestPool, "spec.hostSelector", `{matchExpressions: [{key: pool, operator: Is, values: [gpu]}]}`,
			"operator must be In or NotIn with values", "",
		},
		"selector's values": {
			smallestPool, "spec.hostSelector", `{matchExpressions: [{key: pool, operator: In}]}`, "operator must be In or NotIn with values", "",
		},
		"no release": {smallestPool, "spec.release", "", "Required value", ""},
		"no tag":     {smallestPool, "spec.release.os.image", `registry.example/os/node`, "must be registry/repository:tag", ""},
		"a port is no tag": {
			smallestPool, "spec.release.os.image", `"registry.example:5000/node"`, "must be registry/repository:tag", "",
		},
		"no registry": {smallestPool, "spec.release.os.image", `"node:1.1.0"`, "must be registry/repository:tag", ""},
		"a URL":       {smallestPool, "spec.release.os.image", `"https://registry.example/node:1.1.0"`, "without a scheme", ""},
		"space": {
			smallestPool, "spec.release.os.image", `"registry.example/no de:1.1.0"`, "must be registry/repository:tag", "",
		},
		"empty image":  {smallestPool, "spec.release.os.image", `""`, "must be registry/repository:tag", ""},
		"short digest": {smallestPool, "spec.release.os.image", `"registry.example/node@sha256:abcd"`, "<64 hex digits>", ""},
		"orchestrator": {smallestPool, "spec.orchestrator", `Nobody`, `supported values: "Stayput"`, ""},
		"strategy": {
			smallestPool, "spec.strategy", `{type: Rolling}`, `supported values: "AutoInPlaceUpdate", "ManualInPlaceUpdate"`, "spec.strategy.type",
		},
		"dialect": {
			smallestPool, "spec.strategy", `{dialect: Klingon}`, `supported values: "Shipped", "GEP0031"`, "spec.strategy.dialect",
		},
		"maxUnavailable 0": {
			smallestPool, "spec.strategy", `{maxUnavailable: 0}`, "must be a number of at least 1 or a percentage", "spec.strategy.maxUnavailable",
		},
		"maxUnavailable -1": {
			smallestPool, "spec.strategy", `{maxUnavailable: -1}`,
			"must be a number of at least 1 or a percentage", "spec.strategy.maxUnavailable",
		},
		"maxUnavailable 0%": {
			smallestPool, "spec.strategy", `{maxUnavailable: 0%}`, "percentage from 1% to 100%", "spec.strategy.maxUnavailable",
		},
		"maxUnavailable 101%": {
			smallestPool, "spec.strategy", `{maxUnavailable: 101%}`, "percentage from 1% to 100%", "spec.strategy.maxUnavailable",
		},
		"maxUnavailable in words": {
			smallestPool, "spec.strategy", `{maxUnavailable: half}`, "percentage from 1% to 100%", "spec.strategy.maxUnavailable",
		},
		"maxUnavailable as a digit": {
			smallestPool, "spec.strategy", `{maxUnavailable: "1"}`, "percentage from 1% to 100%", "spec.strategy.maxUnavailable",
		},
		"no wait":           {smallestPool, "spec.reboot", `{silentAfter: 0s}`, duration, "spec.reboot.silentAfter"},
		"negative wait":     {smallestPool, "spec.reboot", `{silentAfter: -5m}`, duration, "spec.reboot.silentAfter"},
		"endless wait":      {smallestPool, "spec.health", `{nodeReady: 25h}`, duration, "spec.health.nodeReady"},
		"wait in days":      {smallestPool, "spec.health", `{kubelet: 1d}`, duration, "spec.health.kubelet"},
		"wait without unit": {smallestPool, "spec.health", `{apiServer: "300"}`, duration, "spec.health.apiServer"},
		"wait in words":     {smallestPool, "spec.health", `{containerRuntime: long}`, duration, "spec.health.containerRuntime"},
		"wait after reset":  {smallestPool, "spec.outOfBand", `{silentAfterReset: 1ms}`, duration, "spec.outOfBand.silentAfterReset"},
		"endless drain": {
			smallestPool, "spec.drain", `{timeout: 200h}`, "must be a duration from 1s to 168h", "spec.drain.timeout",
		},
		"no try":              {smallestPool, "spec.reboot", `{tries: 0}`, "greater than or equal to 1", "spec.reboot.tries"},
		"tries of two digits": {smallestPool, "spec.reboot", `{tries: 10}`, "less than or equal to 9", "spec.reboot.tries"},
		"resets": {
			smallestPool, "spec.outOfBand", `{maxResets: -1}`, "greater than or equal to 0", "spec.outOfBand.maxResets",
		},
		"power through a third": {
			smallestPool, "spec.outOfBand", `{powerVia: Ironic}`, `supported values: "BMC", "Metal3"`, "spec.outOfBand.powerVia",
		},
		"verification, no such policy": {
			smallestPool, "spec.verification", `{policy: Perhaps}`, `supported values: "Require", "Warn", "Off"`, "spec.verification.policy",
		},
		"verification without keys": {
			smallestPool, "spec.verification", `{policy: Require}`, "policy Require and Warn need publicKeys", "",
		},
		"warnings without keys": {smallestPool, "spec.verification", `{policy: Warn}`, "policy Require and Warn need publicKeys", ""},
		"keys of nobody": {
			smallestPool, "spec.verification", `{publicKeys: {}}`, "give one of configMapName and secretName", "spec.verification.publicKeys",
		},
		"keys of two": {
			smallestPool, "spec.verification", `{publicKeys: {configMapName: a, secretName: b}}`,
			"give one of configMapName and secretName", "spec.verification.publicKeys",
		},
		"keys without a name": {
			smallestPool, "spec.verification", `{publicKeys: {configMapName: ""}}`,
			"at least 1 chars long", "spec.verification.publicKeys.configMapName",
		},

		"update: verification off": {
			smallestUpdate, "spec.verification", `{policy: "Off", publicKeys: ["-----BEGIN PUBLIC KEY-----"]}`,
			"must be Require or Warn", "spec.verification.policy",
		},
		"update: no keys": {
			smallestUpdate, "spec.verification", `{policy: Require, publicKeys: []}`, "at least 1 items", "spec.verification.publicKeys",
		},
		"update: a private key": {
			smallestUpdate, "spec.verification", `{policy: Require, publicKeys: ["-----BEGIN PRIVATE KEY-----"]}`,
			"must be a public key in PEM", "spec.verification.publicKeys[0]",
		},
		"update: a long key": {
			smallestUpdate, "spec.verification",
			`{policy: Require, publicKeys: ["-----BEGIN PUBLIC KEY-----` + strings.Repeat("a", 2048) + `"]}`,
			"may not be more than 2048", "spec.verification.publicKeys[0]",
		},
		"update: many keys": {
			smallestUpdate, "spec.verification",
			`{policy: Require, publicKeys: [` + strings.Repeat(`"-----BEGIN PUBLIC KEY-----",`, 65) + `]}`,
			"must have at most 64 items", "spec.verification.publicKeys",
		},
		"no kubeconfig": {smallestPool, "spec.cluster", `{}`, "Required value", "spec.cluster.kubeconfigSecretName"},

		"update: tag": {
			smallestUpdate, "spec.release.os.image", `"registry.example/node:1.1.0"`, "must be registry/repository@sha256:", "",
		},
		"update: no version":     {smallestUpdate, "spec.release.os.version", `""`, "at least 1 chars long", ""},
		"update: attempt":        {smallestUpdate, "spec.attempt", `A1`, "must be 1 to 63 lower-case letters", ""},
		"update: empty attempt":  {smallestUpdate, "spec.attempt", `""`, "must be 1 to 63 lower-case letters", ""},
		"update: attempt's end":  {smallestUpdate, "spec.attempt", `a-`, "must be 1 to 63 lower-case letters", ""},
		"update: long attempt":   {smallestUpdate, "spec.attempt", strings.Repeat("a", 64), "may not be more than 63", ""},
		"update: no door":        {smallestUpdate, "spec.door", "", "Required value", ""},
		"update: unknown door":   {smallestUpdate, "spec.door.kind", `Window`, `supported values: "HostPool"`, ""},
		"update: door, no host":  {smallestUpdate, "spec.door.host", `""`, "at least 1 chars long", ""},
		"update: endless health": {smallestUpdate, "spec.health", `{nodeReady: 25h}`, duration, "spec.health.nodeReady"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := parse(t, tt.object)
			set(t, object, tt.field, tt.value)
			checkRefusal(t, api(t).Create(t.Context(), object, client.DryRunAll), tt)
		})
	}
}

func checkRefusal(t *testing.T, err error, want refusal) {
	t.Helper()

	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want the object refused as invalid", err)
	}

	path := want.path
	if path == "" {
		path = want.field
	}

	// The API server's remark that it stopped at a wrong type or a missing field has no field of its own.
	//nolint:forcetypeassert // IsInvalid has looked
	causes := slices.DeleteFunc(err.(apierrors.APIStatus).Status().Details.Causes,
		func(cause metav1.StatusCause) bool { return cause.Field == "<nil>" })
	if len(causes) != 1 {
		t.Errorf("%d messages, want one: %v", len(causes), err)
	}

	if causes[0].Field != path || !strings.Contains(causes[0].Message, want.want) {
		t.Errorf("field %q: %q\nwant %q: …%s…", causes[0].Field, causes[0].Message, path, want.want)
	}

	t.Log(err)
}

func TestGoodObjectsAreAccepted(t *testing.T) {
	t.Parallel()

	tests := map[string]refusal{
		"smallest pool":       {object: smallestPool, field: "spec.paused", value: "false"},
		"port and path":       {object: smallestPool, field: "spec.release.os.image", value: `"registry.example:5000/a/b-c/d_e:v1.1.0-rc.1"`},
		"IPv6 registry":       {object: smallestPool, field: "spec.release.os.image", value: `"[fd00::1]:5000/node:1"`},
		"digest":              {object: smallestPool, field: "spec.release.os.image", value: `"registry.example/node@` + digestA + `"`},
		"tag and digest":      {object: smallestPool, field: "spec.release.os.image", value: `"registry.example/node:1@` + digestA + `"`},
		"expressions only":    {object: smallestPool, field: "spec.hostSelector", value: `{matchExpressions: [{key: pool, operator: Exists}]}`},
		"percentage":          {object: smallestPool, field: "spec.strategy", value: `{maxUnavailable: 10%}`},
		"whole pool":          {object: smallestPool, field: "spec.strategy", value: `{maxUnavailable: 100%}`},
		"number":              {object: smallestPool, field: "spec.strategy", value: `{maxUnavailable: 7}`},
		"several units":       {object: smallestPool, field: "spec.reboot", value: `{silentAfter: 1h30m}`},
		"part of a minute":    {object: smallestPool, field: "spec.health", value: `{kubelet: 1.5m}`},
		"long drain":          {object: smallestPool, field: "spec.drain", value: `{timeout: 168h}`},
		"no reset":            {object: smallestPool, field: "spec.outOfBand", value: `{maxResets: 0}`},
		"keys of a ConfigMap": {object: smallestPool, field: "spec.verification", value: `{publicKeys: {configMapName: keys}}`},
		"one key of a Secret": {
			object: smallestPool, field: "spec.verification", value: `{policy: Warn, publicKeys: {secretName: keys, key: a.pub}}`,
		},
		"no verification": {object: smallestPool, field: "spec.verification", value: `{policy: "Off"}`},
		"keys that rest":  {object: smallestPool, field: "spec.verification", value: `{policy: "Off", publicKeys: {configMapName: keys}}`},
		"update: keys of a node": {
			object: smallestUpdate, field: "spec.verification", value: `{policy: Warn, publicKeys: ["-----BEGIN PUBLIC KEY-----\nabc"]}`,
		},
		"smallest update":   {object: smallestUpdate, field: "spec.attempt", value: "a"},
		"attempt is a UUID": {object: smallestUpdate, field: "spec.attempt", value: "6f1c0a3e-8f0b-4b62-9a56-0d1b6f0a7f11"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			object := parse(t, tt.object)
			set(t, object, tt.field, tt.value)

			if err := api(t).Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
