package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/config"
)

func TestLoad(t *testing.T) {
	t.Parallel()

	tests := map[string]struct {
		text    string
		want    config.Config
		wantErr string // a part of the message
	}{
		"defaults": {
			text: "nodeName: n1\n",
			want: config.Config{
				NodeName: "n1", Kubeconfig: config.DefaultKubeconfig, StateDir: config.DefaultStateDir,
				Kubelet:          config.Kubelet{Healthz: config.DefaultHealthz},
				ContainerRuntime: config.ContainerRuntime{Socket: config.DefaultRuntimeSocket},
			},
		},
		"everything": {
			text: `{nodeName: n1.example, kubeconfig: /k, stateDir: /s, registry: {dockerConfig: /d, caFile: /c, plainHTTP: true,` +
				` hostsDir: /h, proxy: "http://robot:secret@proxy.example:3128", limitRate: 500Ki}, trust: {keyDir: /t},` +
				` kubelet: {healthz: "https://[::1]:1/healthz"}, containerRuntime: {socket: /r}}`,
			want: config.Config{
				NodeName: "n1.example", Kubeconfig: "/k", StateDir: "/s",
				Registry: config.Registry{
					DockerConfig: "/d", CAFile: "/c", PlainHTTP: true,
					HostsDir: "/h", Proxy: "http://robot:secret@proxy.example:3128", LimitRate: "500Ki",
				},
				Trust:            config.Trust{KeyDir: "/t"},
				Kubelet:          config.Kubelet{Healthz: "https://[::1]:1/healthz"},
				ContainerRuntime: config.ContainerRuntime{Socket: "/r"},
			},
		},
		"one document": {
			text: "# the agent of n1\n---\nnodeName: n1\n---\n# the end\n",
			want: config.Config{
				NodeName: "n1", Kubeconfig: config.DefaultKubeconfig, StateDir: config.DefaultStateDir,
				Kubelet:          config.Kubelet{Healthz: config.DefaultHealthz},
				ContainerRuntime: config.ContainerRuntime{Socket: config.DefaultRuntimeSocket},
			},
		},
		"misspelt field":     {text: "nodeName: n1\nstateDirectory: /x\n", wantErr: "stateDirectory"},
		"no YAML":            {text: "nodeName: [", wantErr: "yaml"},
		"name":               {text: "nodeName: Node_1\n", wantErr: `nodeName "Node_1"`},
		"relative path":      {text: "nodeName: n1\nstateDir: var\n", wantErr: `stateDir "var"`},
		"relative hosts":     {text: "nodeName: n1\nregistry: {hostsDir: certs.d}\n", wantErr: `registry.hostsDir "certs.d"`},
		"relative keys":      {text: "nodeName: n1\ntrust: {keyDir: trust.d}\n", wantErr: `trust.keyDir "trust.d"`},
		"a rate in words":    {text: "nodeName: n1\nregistry: {limitRate: fast}\n", wantErr: `registry.limitRate "fast"`},
		"no rate":            {text: "nodeName: n1\nregistry: {limitRate: \"0\"}\n", wantErr: `registry.limitRate "0"`},
		"a negative rate":    {text: "nodeName: n1\nregistry: {limitRate: \"-5M\"}\n", wantErr: `registry.limitRate "-5M"`},
		"a proxy's name":     {text: "nodeName: n1\nregistry: {proxy: 'robot:hunter2@proxy'}\n", wantErr: "registry.proxy"},
		"a proxy of FTP":     {text: "nodeName: n1\nregistry: {proxy: 'ftp://robot:hunter2@proxy'}\n", wantErr: "registry.proxy"},
		"healthz of a file":  {text: "nodeName: n1\nkubelet: {healthz: /run/x}\n", wantErr: "kubelet.healthz"},
		"healthz elsewhere":  {text: "nodeName: n1\nkubelet: {healthz: 'http://127.0.0.1:99999/'}\n", wantErr: "kubelet.healthz"},
		"healthz of nobody":  {text: "nodeName: n1\nkubelet: {healthz: 'http://:10248/'}\n", wantErr: "kubelet.healthz"},
		"two documents":      {text: "nodeName: n1\n---\nstateDir: /s\n", wantErr: "2 YAML documents"},
		"two at once, first": {text: "nodeName: N\nkubeconfig: k\n", wantErr: `kubeconfig "k"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := filepath.Join(t.TempDir(), "agent.yaml")
			if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}

			got, err := config.Load(path)
			if test.wantErr != "" {
				if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), test.wantErr) ||
					strings.Contains(err.Error(), "hunter2") {
					t.Fatalf("got error %v, want one about %q", err, test.wantErr)
				}

				return
			}

			if err != nil || got != test.want {
				t.Fatalf("got %+v, %v\nwant %+v", got, err, test.want)
			}
		})
	}
}

func TestLoadWithoutFile(t *testing.T) {
	t.Parallel()

	got, err := config.Load(filepath.Join(t.TempDir(), "absent.yaml"))
	if err != nil {
		t.Fatal(err)
	}

	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}

	if got.NodeName != strings.ToLower(host) || got.StateDir != config.DefaultStateDir {
		t.Fatalf("got %+v", got)
	}
}

func TestRate(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]int64{"": 0, "20M": 20_000_000, "500Ki": 512_000, "7": 7} {
		if got, err := (config.Registry{LimitRate: text}).BytesPerSecond(); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
}
