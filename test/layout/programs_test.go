package layout

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// Whatever program a test starts is there on a machine that had nothing: it is of a package that `make test` installs, of
// one that no Debian machine is without, or one that this repository builds.
func TestProgramsOfTestsAreInstalled(t *testing.T) {
	t.Parallel()

	ours := []string{"go", "kustomize"}
	installed := packagesToInstall(t)
	programs := programsOfTests(t)

	for _, known := range []string{"sgdisk", "skopeo", "veritysetup", "mkfs.btrfs", "qemu-img"} {
		if programs[known] == "" {
			t.Errorf("%s was not found in any test: this test no longer sees how programs are started", known)
		}
	}

	for _, program := range slices.Sorted(maps.Keys(programs)) {
		if slices.Contains(ours, program) {
			continue
		}

		if pkg := packageOf(t, program); pkg == "" || !installed[pkg] && !everywhere(t, pkg) {
			t.Errorf("%s starts %s, of the package %q, which hack/lab/packages.txt does not have", programs[program], program, pkg)
		}
	}
}

func packagesToInstall(t *testing.T) map[string]bool {
	t.Helper()

	file, err := os.Open(filepath.Join(root, "hack", "lab", "packages.txt"))
	if err != nil {
		t.Fatal(err)
	}

	defer func() { _ = file.Close() }()

	result := map[string]bool{}

	for lines := bufio.NewScanner(file); lines.Scan(); {
		name, _, _ := strings.Cut(lines.Text(), " ")
		result[name] = name != "" && !strings.HasPrefix(name, "#")
	}

	return result
}

// programsOfTests are the programs by name, each with a file that starts it.
func programsOfTests(t *testing.T) map[string]string {
	t.Helper()

	result := map[string]string{}

	err := filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || dir == filepath.Join(root, "bin") {
			return err
		}

		names, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(names) == 0 {
			return err
		}

		files := map[string]*ast.File{}

		for _, name := range names {
			if files[name], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments); err != nil {
				return err
			}

			if hasBuildTag(files[name]) {
				delete(files, name) // Not of `make test`.
			}
		}

		starters := starters(files)

		for name, file := range files {
			for _, program := range programsOf(file, starters) {
				result[program] = strings.TrimPrefix(name, root+"/")
			}
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return result
}

func hasBuildTag(file *ast.File) bool {
	return slices.ContainsFunc(file.Comments, func(group *ast.CommentGroup) bool {
		return slices.ContainsFunc(group.List, func(line *ast.Comment) bool { return strings.HasPrefix(line.Text, "//go:build ") })
	})
}

// starters are the functions of a package that start the program that they are given.
func starters(files map[string]*ast.File) map[string]bool {
	result := map[string]bool{"Command": true, "CommandContext": true, "LookPath": true}

	for _, file := range files {
		for _, declaration := range file.Decls {
			function, ok := declaration.(*ast.FuncDecl)
			if !ok || strings.HasPrefix(function.Name.Name, "Test") {
				continue
			}

			ast.Inspect(function, func(node ast.Node) bool {
				call, ok := node.(*ast.CallExpr)
				if !ok {
					return true
				}

				// The program comes first, or after the context.
				at := map[string]int{"Command": 0, "CommandContext": 1}
				if place, ok := at[nameOf(call)]; ok && place < len(call.Args) && isParameter(function, call.Args[place]) {
					result[function.Name.Name] = true
				}

				return true
			})
		}
	}

	return result
}

// isParameter tells whether an argument is a text that the function was given, or the first of several.
func isParameter(function *ast.FuncDecl, argument ast.Expr) bool {
	if first, ok := argument.(*ast.IndexExpr); ok {
		argument = first.X
	}

	given, ok := argument.(*ast.Ident)

	return ok && slices.ContainsFunc(function.Type.Params.List, func(field *ast.Field) bool {
		kind := field.Type
		if several, ok := kind.(*ast.Ellipsis); ok {
			kind = several.Elt
		}

		text, isText := kind.(*ast.Ident)

		return isText && text.Name == "string" &&
			slices.ContainsFunc(field.Names, func(name *ast.Ident) bool { return name.Name == given.Name })
	})
}

// programsOf are the first texts that starters are given.
func programsOf(file *ast.File, starters map[string]bool) []string {
	var result []string

	ast.Inspect(file, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok || !starters[nameOf(call)] {
			return true
		}

		for _, argument := range call.Args {
			text, isText := argument.(*ast.BasicLit)
			if !isText || text.Kind != token.STRING {
				continue
			}

			program, err := strconv.Unquote(text.Value)
			if err == nil && program != "" && !strings.HasPrefix(program, "-") && !strings.ContainsAny(program, "/ ") {
				result = append(result, program)
			}

			break
		}

		return true
	})

	return result
}

func nameOf(call *ast.CallExpr) string {
	switch function := call.Fun.(type) {
	case *ast.Ident:
		return function.Name
	case *ast.SelectorExpr:
		return function.Sel.Name
	default:
		return ""
	}
}

// packageOf is the Debian package that a program is of, "" when it is of none, or is not there.
func packageOf(t *testing.T, program string) string {
	t.Helper()

	path, err := exec.LookPath(program)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}

	if err != nil {
		return ""
	}

	// Packages name files where they were before /bin, /sbin and /lib became links.
	for _, path := range []string{path, strings.TrimPrefix(path, "/usr")} {
		if owner, err := exec.CommandContext(t.Context(), "dpkg", "-S", path).Output(); err == nil {
			name, _, _ := strings.Cut(string(owner), ":")

			return name
		}
	}

	return ""
}

// everywhere tells whether every Debian machine has a package.
func everywhere(t *testing.T, pkg string) bool {
	t.Helper()

	priority, err := exec.CommandContext(t.Context(), "dpkg-query", "-W", "-f=${Essential} ${Priority}", pkg).Output()

	return err == nil && (strings.HasPrefix(string(priority), "yes") || strings.HasSuffix(string(priority), "required"))
}
