package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/stayput-dev/stayput/agent/config"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

// TestExamplesAreRead reads the examples as the programs do, and refuses fields that they do not know.
func TestExamplesAreRead(t *testing.T) {
	t.Parallel()

	pools, agents := 0, 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			switch {
			case b.language != "yaml":
			case strings.Contains(b.text, "kind: HostPool\n"):
				pools++
				var pool v1alpha1.HostPool
				if err := yaml.UnmarshalStrict([]byte(b.text), &pool); err != nil {
					t.Errorf("%s: %v", p.path, err)
				}
			case strings.HasPrefix(b.text, "# "+config.DefaultPath):
				agents++
				file := filepath.Join(t.TempDir(), "agent.yaml")
				if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := config.Load(file); err != nil {
					t.Errorf("%s: %v", p.path, err)
				}
			}
		}
	}
	if pools == 0 || agents == 0 {
		t.Errorf("found %d examples of a HostPool and %d of the agent's configuration", pools, agents)
	}
}
