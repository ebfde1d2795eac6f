package fault_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// atOnce is how many plays run at once: they mostly wait for the driver's own pauses.
const atOnce = 24

func TestScenarios(t *testing.T) {
	t.Parallel()
	type job struct {
		play    play
		profile simulator.Profile
		result  outcome
	}
	chosen := regexp.MustCompile(flagValue[string](t, flagFaults))
	var jobs []*job
	for _, p := range plays() {
		for _, profile := range simulator.Profiles() {
			if (p.only == nil || p.only(profile)) && chosen.MatchString(string(p.fault)) {
				jobs = append(jobs, &job{play: p, profile: profile})
			}
		}
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, j := range jobs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			j.result = perform(t.Context(), j.play, j.profile)
		})
	}
	all.Wait()
	failed := 0
	for _, j := range jobs {
		if len(j.result.problem) == 0 {
			continue
		}
		failed++
		t.Errorf("%s, %s, %s: %s", j.play.fault, j.profile.Name, j.play.does, strings.Join(j.result.problem, "; "))
	}
	t.Logf("figure: scenarios: %d (%d faults in %d plays, with those of %d profiles that have what is played): %d passed, %d failed",
		len(jobs), len(fault.Catalogue()), len(plays()), len(simulator.Profiles()), len(jobs)-failed, failed)
}

// TestCatalogue keeps constants, comments, catalogue and plays together.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	played := map[fault.Kind]bool{}
	for _, p := range plays() {
		played[p.fault] = true
		if operations()[p.does] == nil {
			t.Errorf("%s is played with operation %q, which there is not", p.fault, p.does)
		}
	}
	listed := map[fault.Kind]bool{}
	for _, f := range fault.Catalogue() {
		if listed[f.Kind] {
			t.Errorf("%s is listed twice", f.Kind)
		}
		listed[f.Kind] = true
		if !played[f.Kind] {
			t.Errorf("%s is never played", f.Kind)
		}
		if found, ok := fault.Find(f.Kind); !ok || found.Layer != f.Layer {
			t.Errorf("Find(%s) = %+v, %t", f.Kind, found, ok)
		}
		if err := (fault.Target{}).Inject(f.Kind); err == nil || !strings.Contains(err.Error(), string(f.Layer)) {
			t.Errorf("injecting %s into nothing: %v", f.Kind, err)
		}
	}
	if err := (fault.Target{}).Inject("Nonsense"); err == nil {
		t.Error("an unknown fault is injected")
	}
	declared := declaredKinds(t)
	for kind := range declared {
		if !listed[kind] {
			t.Errorf("%s is not in the catalogue", kind)
		}
	}
	if len(declared) != len(listed) {
		t.Errorf("%d kinds are declared, %d listed", len(declared), len(listed))
	}
}

// declaredKinds reads the constants of type Kind, and demands a comment for each or for the one before it.
func declaredKinds(t *testing.T) map[fault.Kind]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[fault.Kind]bool{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || fmt.Sprint(spec.Type) != "Kind" {
				return true
			}
			kind := spec.Names[0].Name
			kinds[fault.Kind(kind)] = true
			if spec.Doc == nil && !strings.HasPrefix(kind, "CredentialsEchoedOnLogin") {
				t.Errorf("%s has no comment", kind)
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); !ok || literal.Value != `"`+kind+`"` {
				t.Errorf("the value of %s is not its name", kind)
			}

			return true
		})
	}

	return kinds
}
