package tools_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

func TestTheModulesPinTheVersionsThatTheSetsAreNamedAfter(t *testing.T) {
	t.Parallel()

	root, err := tools.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}

	for file, pin := range map[string]string{
		"hack/kubernetes/go.mod": "k8s.io/kubernetes " + tools.KubernetesVersion,
		"hack/containerd/go.mod": "github.com/containerd/containerd/v2 " + tools.ContainerdVersion,
		"hack/cosign2/go.mod":    "github.com/sigstore/cosign/v2 " + tools.Cosign2Version,
		"hack/cosign3/go.mod":    "github.com/sigstore/cosign/v3 " + tools.Cosign3Version,
		"hack/bmo/go.mod":        "github.com/metal3-io/baremetal-operator " + tools.BareMetalOperatorVersion,
		"go.mod":                 "github.com/metal3-io/baremetal-operator/apis " + tools.BareMetalOperatorVersion,
	} {
		data, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}

		if !regexp.MustCompile(`(?m)^\s*(require )?` + regexp.QuoteMeta(pin) + `( // indirect)?$`).Match(data) {
			t.Errorf("%s does not require %s", file, pin)
		}
	}
}

func TestProgramsAreNamedAsTheyAreKnown(t *testing.T) {
	t.Parallel()

	want := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"}
	got := slices.Sorted(slices.Values(tools.Kubernetes().Programs()))

	if !slices.Equal(got, want) {
		t.Errorf("programs %v, want %v", got, want)
	}
}

// A set that is complete is returned without calling the compiler, even in a folder that is no repository.
func TestACompleteSetIsNotBuiltAgain(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("PATH", "")

	dir := filepath.Join(cache, "stayput-lab", "containerd-"+tools.ContainerdVersion)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}

	for _, name := range tools.Containerd().Programs() {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("program"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	got, err := tools.Ensure(t.Context(), "/nonexistent", tools.Containerd(), t.Logf)
	if err != nil || got != dir {
		t.Errorf("Ensure = %q, %v, want %q", got, err, dir)
	}
}

// A build that fails leaves nothing behind that a later call would take for a finished one.
func TestAFailedBuildLeavesNoDirectory(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	if _, err := tools.Ensure(ctx, t.TempDir(), tools.Containerd(), t.Logf); err == nil {
		t.Fatal("Ensure built a module that does not exist")
	}

	left, err := os.ReadDir(filepath.Join(cache, "stayput-lab"))
	if err != nil {
		t.Fatal(err)
	}

	for _, entry := range left {
		if !strings.HasSuffix(entry.Name(), ".lock") {
			t.Errorf("left behind: %s", entry.Name())
		}
	}
}

func TestPackageListAndMissing(t *testing.T) {
	t.Parallel()

	names := tools.PackageList([]byte("# for the lab\ndpkg  # always there\n\nno-such-package-as-this\n"))
	if !slices.Equal(names, []string{"dpkg", "no-such-package-as-this"}) {
		t.Fatalf("list is %v", names)
	}

	if missing := tools.MissingPackages(t.Context(), names); !slices.Equal(missing, names[1:]) {
		t.Errorf("missing %v, want %v", missing, names[1:])
	}
}
