package hosts_test

import (
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage/hosts"
)

const everything = `
server = "https://registry-1.docker.io"
ca = "upstream.pem"
dial_timeout = "7s"

[host."https://second.example:5000"]
  capabilities = ["pull"]
  ca = ["a.pem", "/etc/b.pem"]
  client = [["one.pem", "one.key"], "both.pem"]
  skip_verify = true
  dial_timeout = "3s"

  [host."https://second.example:5000".header]
    X-One = "1"
    X-Many = ["a", "b"]

[host."http://first.example/mirror/v2"]
  capabilities = ["pull", "resolve", "push"]
  override_path = true

[host."third.example/prefix/"]
`

func TestParse(t *testing.T) {
	t.Parallel()

	got, err := hosts.Parse([]byte(everything), "/certs.d/docker.io/hosts.toml", "docker.io")
	if err != nil {
		t.Fatal(err)
	}

	both := hosts.Pull | hosts.Resolve
	want := hosts.Config{
		File: "/certs.d/docker.io/hosts.toml",
		Server: hosts.Host{
			Scheme: "https", Address: "registry-1.docker.io", Path: "/v2", Capabilities: both | hosts.Push,
			CAFiles: []string{"/certs.d/docker.io/upstream.pem"}, Header: http.Header{}, DialTimeout: 7 * time.Second,
		},
		Mirrors: []hosts.Host{
			{
				Scheme: "https", Address: "second.example:5000", Path: "/v2", Capabilities: hosts.Pull,
				CAFiles: []string{"/certs.d/docker.io/a.pem", "/etc/b.pem"}, SkipVerify: true, DialTimeout: 3 * time.Second,
				Clients: []hosts.ClientCertificate{
					{Certificate: "/certs.d/docker.io/one.pem", Key: "/certs.d/docker.io/one.key"},
					{Certificate: "/certs.d/docker.io/both.pem", Key: "/certs.d/docker.io/both.pem"},
				},
				Header: http.Header{"X-One": {"1"}, "X-Many": {"a", "b"}},
			},
			{Scheme: "http", Address: "first.example", Path: "/mirror/v2", Capabilities: both | hosts.Push, Header: http.Header{}},
			{Scheme: "https", Address: "third.example", Path: "/prefix/v2", Capabilities: both, Header: http.Header{}},
		},
	}

	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v, want\n%+v", got, want)
	}
}

// containerd's file grows: what it says and we do not know must not keep a node from its mirrors.
func TestUnknownFieldsAreWarnings(t *testing.T) {
	t.Parallel()

	config, err := hosts.Parse([]byte(`server = "https://a.example"
new_field = 1
[host."https://m.example"]
newer = {x = 1}
skip_verify = true
`), "hosts.toml", "a.example")
	if err != nil {
		t.Fatal(err)
	}

	text := strings.Join(config.Warnings, "\n")
	if len(config.Warnings) != 2 || !strings.Contains(text, "new_field") || !strings.Contains(text, "newer") ||
		!strings.Contains(text, "hosts.toml: line 2") {
		t.Errorf("warnings %q", config.Warnings)
	}

	if len(config.Mirrors) != 1 || !config.Mirrors[0].SkipVerify {
		t.Errorf("the rest is lost: %+v", config.Mirrors)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()

	for text, reason := range map[string]string{
		`server = `:                                  "line 1",
		`server = 5`:                                 "line 1",
		`server = "ftp://a.example"`:                 "ftp",
		`server = "https://"`:                        "no host",
		`server = "https://u:hunter2@a.example"`:     "credentials",
		`server = "https://a.example/?k=hunter2"`:    "query",
		`server = "https://%zz:hunter2@"`:            "cannot be read",
		`capabilities = ["pull", "delete"]`:          `"delete"`,
		`ca = 5`:                                     "ca is neither",
		`ca = [5]`:                                   "ca has an entry",
		`ca = ""`:                                    "empty path",
		`client = [["a", "b", "c"]]`:                 "3 paths",
		`client = [5]`:                               "client is neither",
		`dial_timeout = "fast"`:                      "fast",
		`dial_timeout = "-1s"`:                       "-1s",
		"[host.\"https://m.example\"]\nca = true":    `host "https://m.example"`,
		"[header]\nX = 5":                            `header "X"`,
		"[header]\nX = \"hunter2\\r\\nY: z\"":        "cannot be sent",
		"[header]\n\"X Y\" = \"hunter2\"":            "cannot be sent",
		"#" + strings.Repeat("x", 1<<20):             "bytes",
		"[host]\n\"https://m.example\" = \"string\"": "line 2",
	} {
		_, err := hosts.Parse([]byte(text), "/certs.d/x/hosts.toml", "x")
		if err == nil || !strings.Contains(err.Error(), reason) || !strings.Contains(err.Error(), "/certs.d/x/hosts.toml") {
			t.Errorf("%.60q: got %v, want an error that names the file and %q", text, err, reason)
		}

		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%.60q: the error shows a secret: %v", text, err)
		}
	}
}

func TestLoadChoosesTheFolder(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		folders  []string
		registry string
		want     string
	}{
		"the registry's":             {[]string{"a.example", "_default"}, "a.example", "a.example"},
		"the default":                {[]string{"b.example", "_default"}, "a.example", "_default"},
		"none":                       {[]string{"b.example"}, "a.example", ""},
		"with a port":                {[]string{"a.example", "a.example:5000"}, "a.example:5000", "a.example:5000"},
		"with a port, the other way": {[]string{"a.example_5000_", "a.example:5000"}, "a.example:5000", "a.example_5000_"},
		"docker.io":                  {[]string{"docker.io"}, "index.docker.io", "docker.io"},
		"IPv6":                       {[]string{"[::1]"}, "[::1]", "[::1]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			for _, folder := range test.folders {
				write(t, filepath.Join(dir, folder), "[host.\"https://of-"+strings.Trim(folder, "[]:")+"\"]\n")
			}

			config, err := hosts.Load(dir, test.registry)
			if err != nil {
				t.Fatal(err)
			}

			want := ""
			if test.want != "" {
				want = filepath.Join(dir, test.want, "hosts.toml")
			}

			if config.File != want || (len(config.Mirrors) == 1) != (want != "") {
				t.Errorf("read %q with %d mirrors, want %q", config.File, len(config.Mirrors), want)
			}
		})
	}
}

func TestServerWithoutAFile(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "a.example"), 0o755); err != nil {
		t.Fatal(err)
	}

	for registry, address := range map[string]string{
		"a.example": "a.example", "b.example:5000": "b.example:5000", "index.docker.io": "registry-1.docker.io",
	} {
		config, err := hosts.Load(dir, registry)
		if err != nil || config.Server.URL() != "https://"+address || !config.Server.May(hosts.Push) {
			t.Errorf("%s: %+v, %v", registry, config.Server, err)
		}
	}

	if _, err := hosts.Load(filepath.Join(dir, "none"), "a.example"); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("a missing folder: %v", err)
	}
}

func write(t *testing.T, folder, text string) {
	t.Helper()

	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(folder, "hosts.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// No file can do more harm than an error: each host that comes out has an address, and its files are inside the folder
// or where an absolute path says.
func FuzzParse(f *testing.F) {
	f.Add(everything)
	f.Add("[host]\n\"https://m\" = {capabilities=[\"pull\"]}")
	f.Add("host.\"a\".ca = [\"x\", \"y\"]\n")
	f.Add("[[host]]\n")
	f.Add("server = 'x'\nclient=[['a','b'],[]]")

	f.Fuzz(func(t *testing.T, text string) {
		config, err := hosts.Parse([]byte(text), "/certs.d/x/hosts.toml", "x")
		if err != nil {
			return
		}

		for _, host := range append(config.Mirrors, config.Server) {
			if host.Address == "" || host.Capabilities == 0 || host.Scheme != "https" && host.Scheme != "http" ||
				strings.HasSuffix(host.Path, "/") {
				t.Errorf("a host of %q: %+v", text, host)
			}

			for _, path := range host.CAFiles {
				if !filepath.IsAbs(path) {
					t.Errorf("a relative path: %q", path)
				}
			}
		}
	})
}
