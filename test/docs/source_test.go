package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// constants are the string constants of a folder whose declared type is typeName, "" for none, and whose name starts
// with prefix.
func constants(t *testing.T, folder, typeName, prefix string) []string {
	t.Helper()

	var values []string
	for _, path := range goFiles(t, folder) {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range file.Decls {
			group, ok := declaration.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, spec := range group.Specs {
				values = append(values, stringsOf(t, spec, typeName, prefix)...)
			}
		}
	}

	return values
}

func stringsOf(t *testing.T, spec ast.Spec, typeName, prefix string) []string {
	t.Helper()

	value, ok := spec.(*ast.ValueSpec)
	if !ok || len(value.Values) != 1 || !strings.HasPrefix(value.Names[0].Name, prefix) {
		return nil
	}
	declared := ""
	if name, isName := value.Type.(*ast.Ident); isName {
		declared = name.Name
	}
	literal, ok := value.Values[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING || declared != typeName {
		return nil
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		t.Fatal(err)
	}

	return []string{text}
}

// goFiles are the Go files below a folder, without tests.
func goFiles(t *testing.T, folder string) []string {
	t.Helper()

	var paths []string
	err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			paths = append(paths, path)
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return paths
}

// metricNames are the metrics that a folder's code defines.
func metricNames(t *testing.T, folder string) []string {
	t.Helper()

	var names []string
	definition := regexp.MustCompile(`Name:\s+"(stayput_\w+)"`)
	for _, path := range goFiles(t, folder) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range definition.FindAllSubmatch(text, -1) {
			names = append(names, string(match[1]))
		}
	}

	return names
}

// schema is a part of a CRD's schema.
type schema struct {
	Type       string            `json:"type"`
	Enum       []string          `json:"enum"`
	Default    any               `json:"default"`
	Properties map[string]schema `json:"properties"`
}

// at follows a path such as status.outOfBand.reason.
func (s schema) at(path string) (schema, bool) {
	for name := range strings.SplitSeq(path, ".") {
		next, ok := s.Properties[name]
		if !ok {
			return schema{}, false
		}
		s = next
	}

	return s, true
}

// readSchema reads the CRD of a resource.
func readSchema(t *testing.T, resource string) schema {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(root, "config/crd/bases/stayput.dev_"+resource+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	if len(crd.Spec.Versions) != 1 {
		t.Fatalf("the CRD of %s has %d versions; teach this test to read them", resource, len(crd.Spec.Versions))
	}

	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema
}

// difference says what one list has and the other has not, and what occurs twice.
func difference(documented, existing []string) (missing, invented, twice []string) {
	for _, value := range existing {
		if !slices.Contains(documented, value) {
			missing = append(missing, value)
		}
	}
	seen := map[string]bool{}
	for _, value := range documented {
		if !slices.Contains(existing, value) {
			invented = append(invented, value)
		}
		if seen[value] {
			twice = append(twice, value)
		}
		seen[value] = true
	}

	return missing, invented, twice
}
