package docs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// alertCells is how many cells a row about an alert has: alert, meaning, what you do.
const alertCells = 3

func TestGuideHasEveryAlert(t *testing.T) {
	t.Parallel()

	text, err := os.ReadFile(filepath.Join(root, "config/prometheus/rules.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert string `json:"alert"`
				} `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	var existing []string
	for _, group := range rules.Spec.Groups {
		for _, rule := range group.Rules {
			existing = append(existing, rule.Alert)
		}
	}
	if len(existing) == 0 {
		t.Fatal("found no alerts")
	}

	rows := readPage(t, guide).rows("Alerts")
	for _, row := range rows {
		if len(row) != alertCells || slices.Contains(row, "") {
			t.Errorf("%s, %q: %s has %d cells; each of %d needs words", guide, "Alerts", row[0], len(row), alertCells)
		}
	}
	check(t, "Alerts", firstCells(rows), existing)
}
