package config

import (
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

// kustomizations are the folders of config with a kustomization, relative to this one.
func kustomizations(t *testing.T) []string {
	t.Helper()
	var folders []string
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "kustomization.yaml" {
			folders = append(folders, filepath.Dir(path))
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return folders
}

// Each is applied by itself, without a trace. The strict validation is kubectl's default; it is named so that no
// configuration of the user's takes it away.
func TestEveryKustomizationIsAccepted(t *testing.T) {
	t.Parallel()
	server := start(t)
	kubectl(t, server, "apply", "-k", "../namespace") // what a dry run makes is not there for the next object
	root, err := tools.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	monitoring, err := tools.CRDs(t.Context(), root, "prometheus")
	if err != nil {
		t.Fatal(err)
	}
	kubectl(t, server, "apply", "--server-side", "-f", monitoring)
	kubectl(t, server, "wait", "--for=condition=Established", "--timeout=60s", "customresourcedefinitions", "--all")
	folders := kustomizations(t)
	for _, folder := range folders {
		out := kubectl(t, server, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-k", folder)
		accepted, all := strings.Count(out, "serverside-applied"), len(names(t, folder))
		if accepted == 0 || accepted != all {
			t.Errorf("%s: %d of %d objects were accepted:\n%s", folder, accepted, all, out)
		}
	}
	for _, wanted := range []string{"../default", "../nodes", "../crd", "../rbac", "../prometheus"} {
		if !slices.Contains(folders, wanted) {
			t.Errorf("%s was not tried, only %s", wanted, folders)
		}
	}
}

// The Prometheus operator is nobody's duty: what everybody installs has nothing of its kinds.
func TestWhatIsInstalledNeedsNoPrometheusOperator(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{".", "../nodes"} {
		if out := run(t, "kustomize", folder); strings.Contains(out, "monitoring.coreos.com") {
			t.Errorf("%s has objects of the Prometheus operator", folder)
		}
	}
}

// names are the kinds and names of a kustomization's objects, sorted.
func names(t *testing.T, folder string) []string {
	t.Helper()
	var names []string
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(run(t, "kustomize", folder)), 4096)
	for {
		var object unstructured.Unstructured
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			slices.Sort(names)

			return names
		} else if err != nil {
			t.Fatalf("reading %s: %v", folder, err)
		}
		names = append(names, object.GetKind()+" "+object.GetName())
	}
}

// A cluster of Nodes gets what agents and the controller need there, and nothing of the hosts' cluster.
func TestAClusterOfNodesGetsItsPartOnly(t *testing.T) {
	t.Parallel()
	want := []string{
		"ClusterRole stayput-agent", "ClusterRole stayput-controller-nodes",
		"ClusterRoleBinding stayput-agent", "ClusterRoleBinding stayput-controller-nodes",
		"CustomResourceDefinition nodeupdates.stayput.dev",
		"Namespace stayput-system", "Secret stayput-controller-token", "ServiceAccount stayput-controller",
		"ValidatingAdmissionPolicy stayput-agent", "ValidatingAdmissionPolicyBinding stayput-agent",
	}
	if got := names(t, "../nodes"); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
