package docs

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/config"
)

// reasonCells is how many cells a row about a reason has: reason, meaning, what Stayput does, what you do, retry.
const reasonCells = 5

func TestGuideHasEveryReason(t *testing.T) {
	t.Parallel()

	const api = "api/v1alpha1"

	hostPools, nodeUpdates := constants(t, api, "", "Reason"), constants(t, api, "Reason", "Reason")
	bmc, outcomes := constants(t, api, "OutOfBandReason", ""), constants(t, "controllers/pool", "Outcome", "")
	updates := readSchema(t, "nodeupdates")

	for section, existing := range map[string][]string{
		"Reasons of a HostPool":   hostPools,
		"Reasons of a NodeUpdate": nodeUpdates,
		"Reasons of the BMC rung": bmc,
		"Outcomes of an attempt":  outcomes,
	} {
		checkReasons(t, section, existing)
	}
	for path, existing := range map[string][]string{"status.reason": nodeUpdates, "status.outOfBand.reason": bmc} {
		field, ok := updates.at(path)
		if missing, invented, _ := difference(existing, field.Enum); !ok || len(missing)+len(invented) > 0 {
			t.Errorf("%s of the CRD of NodeUpdates and the constants differ: %v, %v", path, missing, invented)
		}
	}
}

func checkReasons(t *testing.T, section string, existing []string) {
	t.Helper()

	rows := readPage(t, guide).rows(section)
	for _, row := range rows {
		if len(row) != reasonCells || slices.Contains(row, "") {
			t.Errorf("%s, %q: %s has %d cells; each of %d needs words", guide, section, row[0], len(row), reasonCells)
		}
	}
	if len(existing) == 0 {
		t.Fatalf("found no constants for %q", section)
	}
	check(t, section, firstCells(rows), existing)
}

func firstCells(rows [][]string) []string {
	cells := make([]string, 0, len(rows))
	for _, row := range rows {
		cells = append(cells, row[0])
	}

	return cells
}

func check(t *testing.T, section string, documented, existing []string) {
	t.Helper()

	missing, invented, twice := difference(documented, existing)
	if len(missing) > 0 {
		t.Errorf("%s, %q: missing: %s", guide, section, strings.Join(missing, ", "))
	}
	if len(invented) > 0 {
		t.Errorf("%s, %q: these do not exist: %s", guide, section, strings.Join(invented, ", "))
	}
	if len(twice) > 0 {
		t.Errorf("%s, %q: twice: %s", guide, section, strings.Join(twice, ", "))
	}
}

func TestGuideHasEveryMetric(t *testing.T) {
	t.Parallel()

	documented := slices.DeleteFunc(firstCells(readPage(t, guide).rows("Watching")), func(cell string) bool {
		return !strings.HasPrefix(cell, "stayput_")
	})
	check(t, "Watching", documented, metricNames(t, "controllers"))

	for _, span := range readPage(t, guide).codeSpans() {
		if name := regexp.MustCompile(`stayput_\w+`).FindString(span); name != "" && !slices.Contains(documented, name) {
			t.Errorf("%s names metric %s, which does not exist", guide, name)
		}
	}
}

func TestGuideHasEveryCondition(t *testing.T) {
	t.Parallel()

	var documented []string
	for _, cell := range firstCells(readPage(t, guide).rows("Watching")) {
		// A condition's row may say its status, too.
		name, _, _ := strings.Cut(cell, "`")
		if !strings.HasPrefix(name, "stayput_") && !slices.Contains(documented, name) {
			documented = append(documented, name)
		}
	}
	check(t, "Watching", documented, constants(t, "api/v1alpha1", "", "Condition"))
}

// TestGuideHasTheDefaults compares each setting `spec.…` that has a row with the CRD.
func TestGuideHasTheDefaults(t *testing.T) {
	t.Parallel()

	pools := readSchema(t, "hostpools")
	seen := map[string]bool{}
	for _, section := range []string{"Steering", "The BMC rung"} {
		for _, row := range readPage(t, guide).rows(section) {
			if !strings.HasPrefix(row[0], "spec.") {
				continue
			}
			field, ok := pools.at(row[0])
			if !ok {
				t.Errorf("%s: a HostPool has no %s", guide, row[0])

				continue
			}
			want := fmt.Sprint(field.Default)
			if field.Default == nil && field.Type == "boolean" {
				want = "false"
			}
			if got := strings.Trim(row[1], "`"); got != want {
				t.Errorf("%s: the default of %s is %s, not %s", guide, row[0], want, got)
			}
			seen[row[0]] = true
		}
	}
	for _, group := range []string{"drain", "reboot", "health", "outOfBand"} {
		fields, _ := pools.at("spec." + group)
		for name := range maps.Keys(fields.Properties) {
			if path := "spec." + group + "." + name; !seen[path] {
				t.Errorf("%s: %s has no row", guide, path)
			}
		}
	}
}

func TestGuideHasTheAgentsConfiguration(t *testing.T) {
	t.Parallel()

	documented := firstCells(readPage(t, guide).rows("The agent's configuration"))
	check(t, "The agent's configuration", documented, jsonFields("", reflect.TypeFor[config.Config]()))
}

// jsonFields are the paths of a struct's fields.
func jsonFields(prefix string, structure reflect.Type) []string {
	var paths []string
	for field := range structure.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Type.Kind() == reflect.Struct {
			paths = append(paths, jsonFields(prefix+name+".", field.Type)...)
		} else {
			paths = append(paths, prefix+name)
		}
	}

	return paths
}

func TestGuideChecksFindWhatIsWrong(t *testing.T) {
	t.Parallel()

	p := parsePage(guide, "## A\n| reason | x |\n|---|---|\n| `One` | x |\n### Inner\n| `Two` | y |\n| `Two` | y |\n## B\n| `Three` | z |\n")

	documented := firstCells(p.rows("A"))
	missing, invented, twice := difference(documented, []string{"One", "Four"})
	if got := fmt.Sprint(documented, missing, invented, twice); got != "[One Two Two] [Four] [Two Two] [Two]" {
		t.Errorf("got %s", got)
	}
}
