package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/stayput-dev/stayput/"

// rule says what the packages below a folder may not import. Folders and prefixes are relative to the module, but for
// prefixes that start with another module's name.
type rule struct {
	folder string
	// only, when set, are the folders of this module that may be imported; the package's own folder always may.
	only []string
	// never are prefixes of other modules that may not be imported, not even by way of others.
	never []string
	why   string
}

// kubernetesClients are the packages that talk to an API server.
func kubernetesClients() []string {
	return []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/rest", "k8s.io/client-go/dynamic", "sigs.k8s.io/controller-runtime"}
}

func rules() []rule {
	return []rule{
		{folder: "api", why: "the API is what others build on"},
		{folder: "bmc", only: []string{"api"}, never: kubernetesClients(), why: "a BMC knows nothing of Kubernetes"},
		{folder: "osimage", only: []string{"api"}, never: kubernetesClients(), why: "an image knows nothing of Kubernetes"},
		{
			folder: "osimage/trust",
			never: []string{
				"google.golang.org/grpc", "github.com/sigstore/sigstore-go", "github.com/sigstore/rekor", "github.com/theupdateframework",
				"golang.org/x/oauth2",
			},
			why: "each node verifies signatures, with keys alone",
		},
		{folder: "sysext", only: []string{"api"}, never: kubernetesClients(), why: "a bundle knows nothing of Kubernetes"},
		{
			folder: "agent", only: []string{"api", "osimage", "sysext"},
			never: []string{"k8s.io/client-go/kubernetes", "sigs.k8s.io/controller-runtime"},
			why:   "the agent never reaches a BMC or a controller, and every API group would cost it 14 MiB of memory",
		},
		{folder: "controllers", only: []string{"api", "bmc", "osimage", "sysext"}, why: "controllers never reach into a node"},
		{folder: "controllers/powerlease", why: "the command takes power leases, too, and needs no controller for it"},
	}
}

type listed struct {
	ImportPath string   `json:"ImportPath"`
	Imports    []string `json:"Imports"`
	Deps       []string `json:"Deps"`
}

func TestImportsFollowTheArchitecture(t *testing.T) {
	t.Parallel()

	packages := list(t)
	seen := map[string]bool{}

	for _, pkg := range packages {
		for _, r := range rules() {
			own := strings.TrimPrefix(pkg.ImportPath, module)
			if !within(own, r.folder) {
				continue
			}

			seen[r.folder] = true

			for _, problem := range violations(pkg, r) {
				t.Errorf("%s imports %s: %s", own, problem, r.why)
			}
		}
	}

	for _, folder := range []string{"api", "bmc", "osimage", "agent", "controllers"} {
		if !seen[folder] {
			t.Errorf("no package below %q was checked", folder)
		}
	}
}

func violations(pkg listed, r rule) []string {
	var problems []string

	for _, path := range pkg.Imports {
		if own, ours := strings.CutPrefix(path, module); ours && !within(own, r.folder) && !withinAny(own, r.only) {
			problems = append(problems, own)
		}
	}

	for _, path := range pkg.Deps {
		for _, prefix := range r.never {
			if path == prefix || strings.HasPrefix(path, prefix+"/") {
				problems = append(problems, path)
			}
		}
	}

	return problems
}

func TestViolationsAreFound(t *testing.T) {
	t.Parallel()

	r := rule{folder: "bmc", only: []string{"api"}, never: kubernetesClients()}
	pkg := listed{
		ImportPath: module + "bmc",
		Imports:    []string{module + "api/v1alpha1", module + "bmc/redfish", module + "controllers/pool", "fmt"},
		Deps:       []string{"k8s.io/client-go/rest", "k8s.io/client-go/restfulness"},
	}

	got := strings.Join(violations(pkg, r), " ")
	if want := "controllers/pool k8s.io/client-go/rest"; got != want {
		t.Errorf("violations = %q, want %q", got, want)
	}
}

func withinAny(path string, folders []string) bool {
	for _, folder := range folders {
		if within(path, folder) {
			return true
		}
	}

	return false
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

// list returns the packages of the module. Test files are left out: a test may use a fake of another layer.
func list(t *testing.T) []listed {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", module+"...").Output()
	if err != nil {
		t.Fatalf("listing the packages: %v", err)
	}

	var packages []listed

	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var pkg listed

		err := decoder.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			return packages
		}

		if err != nil {
			t.Fatalf("reading go list: %v", err)
		}

		packages = append(packages, pkg)
	}
}
