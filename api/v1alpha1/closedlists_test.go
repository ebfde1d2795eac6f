package v1alpha1_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/api/protocol"
	"github.com/stayput-dev/stayput/api/v1alpha1"
)

const enumMarker = "+kubebuilder:validation:Enum="

// TestClosedListsHaveEveryConstant compares the enumeration that the API server enforces with the constants that
// the code uses: a constant that is missing there would be refused when it is first written.
func TestClosedListsHaveEveryConstant(t *testing.T) {
	t.Parallel()

	enums, constants := map[string][]string{}, map[string][]string{}

	files, err := filepath.Glob("*_types.go")
	if err != nil {
		t.Fatal(err)
	}

	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}

		for _, declaration := range file.Decls {
			if group, ok := declaration.(*ast.GenDecl); ok {
				collect(t, group, enums, constants)
			}
		}
	}

	if len(enums) < 10 {
		t.Fatalf("found the enumerations %v only", enums)
	}

	for name, values := range enums {
		slices.Sort(values)
		slices.Sort(constants[name])

		if !slices.Equal(values, constants[name]) {
			t.Errorf("%s: the marker allows %v, the constants are %v", name, values, constants[name])
		}
	}
}

func collect(t *testing.T, group *ast.GenDecl, enums, constants map[string][]string) {
	t.Helper()

	if group.Tok == token.TYPE && group.Doc != nil {
		for _, line := range group.Doc.List {
			if _, list, found := strings.Cut(line.Text, enumMarker); found {
				enums[typeName(group.Specs[0])] = strings.Split(list, ";")
			}
		}
	}

	if group.Tok != token.CONST {
		return
	}

	for _, spec := range group.Specs {
		value, ok := spec.(*ast.ValueSpec)
		if !ok || value.Type == nil || len(value.Values) != 1 {
			continue
		}

		literal, ok := value.Values[0].(*ast.BasicLit)
		if !ok {
			continue
		}

		text, err := strconv.Unquote(literal.Value)
		if err != nil {
			t.Fatal(err)
		}

		if name, ok := value.Type.(*ast.Ident); ok {
			constants[name.Name] = append(constants[name.Name], text)
		}
	}
}

func typeName(spec ast.Spec) string {
	if named, ok := spec.(*ast.TypeSpec); ok {
		return named.Name.Name
	}

	return ""
}

func TestDialectsAreThoseOfTheProtocol(t *testing.T) {
	t.Parallel()

	if string(v1alpha1.DialectShipped) != string(protocol.Shipped) || string(v1alpha1.DialectGEP0031) != string(protocol.GEP0031) {
		t.Error("a HostPool's dialects are not those of package protocol")
	}
}
