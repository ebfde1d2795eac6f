package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// The guide takes rules out of the controller's ClusterRole by their number: each must be the one that it says, when those
// before it are gone.
func TestGuideTakesTheRightRulesOut(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(root, "config/rbac/controller_role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var role rbacv1.ClusterRole
	if err := yaml.UnmarshalStrict(data, &role); err != nil {
		t.Fatal(err)
	}
	operation := regexp.MustCompile(`\{op: (test|remove), path: /rules/([0-9]+)(?:/resources/0, value: ([a-z]+))?\}`)
	removed := 0
	for _, block := range readPage(t, guide).blocks {
		for _, found := range operation.FindAllStringSubmatch(block.text, -1) {
			number, err := strconv.Atoi(found[2])
			switch {
			case err != nil || number >= len(role.Rules):
				t.Fatalf("%s: there are %d rules", found[0], len(role.Rules))
			case found[1] == "remove":
				role.Rules = slices.Delete(role.Rules, number, number+1)
				removed++
			case role.Rules[number].Resources[0] != found[3]:
				t.Errorf("%s: rule %d is of %s", found[0], number, role.Rules[number].Resources[0])
			}
		}
	}
	if removed != 2 {
		t.Errorf("%d rules are taken out, want 2", removed)
	}
}
