package docs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// command is a line of a page that runs one of our programs, or make.
type command struct {
	page, line string
	words      []string
}

var (
	separator = regexp.MustCompile(`\s(?:\||\|\||&&|;)\s`)
	comment   = regexp.MustCompile(`\s#.*|^#.*`)
	flagLine  = regexp.MustCompile(`^\s+(?:(-\w), )?(--[\w-]+)`)
	childLine = regexp.MustCompile(`^  ([a-z][\w-]*)\s`)
	target    = regexp.MustCompile(`(?m)^([\w-]+):`)
)

func programs() []string { return []string{"stayput", "stayput-agent", "stayput-controller"} }

// commands are those of the blocks that are not of a language, and of the inline code.
func (p page) commands() []command {
	var lines []string
	for _, b := range p.blocks {
		if b.language == "" || b.language == "sh" || b.language == "console" {
			lines = append(lines, strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n")...)
		}
	}
	lines = append(lines, p.codeSpans()...)

	var found []command
	for _, line := range lines {
		for _, part := range separator.Split(comment.ReplaceAllString(line, ""), -1) {
			words := strings.Fields(part)
			for len(words) > 0 && (words[0] == "sudo" || words[0] == "$") {
				words = words[1:]
			}
			if len(words) > 0 && (words[0] == "make" || slices.Contains(programs(), filepath.Base(words[0]))) {
				words[0] = filepath.Base(words[0])
				found = append(found, command{page: p.path, line: strings.TrimSpace(part), words: words})
			}
		}
	}

	return found
}

// help asks a program for the help of one of its commands.
type help func(words ...string) (string, error)

// problem says what a command names that does not exist, "" when all does.
func (c command) problem(ask help, targets []string) string {
	if c.words[0] == "make" {
		for _, word := range c.words[1:] {
			if !strings.Contains(word, "=") && !strings.HasPrefix(word, "-") && !slices.Contains(targets, word) {
				return fmt.Sprintf("%s: `%s`: the Makefile has no target %s", c.page, c.line, word)
			}
		}

		return ""
	}
	text, rest, err := c.walk(ask)
	if err != nil {
		return fmt.Sprintf("%s: `%s`: %v", c.page, c.line, err)
	}
	children, flags := children(text), flagsOf(text)
	if len(children) > 0 && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "…" {
		return fmt.Sprintf("%s: `%s`: there is no command %s", c.page, c.line, rest[0])
	}
	for _, word := range rest {
		name, _, _ := strings.Cut(word, "=")
		if len(name) > 1 && strings.HasPrefix(name, "-") && !slices.Contains(flags, name) {
			return fmt.Sprintf("%s: `%s`: there is no flag %s", c.page, c.line, name)
		}
	}

	return ""
}

// walk goes down the tree of commands as far as the words lead. It gives the help there, and the words that are left.
func (c command) walk(ask help) (text string, rest []string, err error) {
	path, rest := c.words[:1], c.words[1:]
	for {
		text, err = ask(path...)
		if err != nil {
			return "", nil, err
		}
		if len(rest) == 0 || !slices.Contains(children(text), rest[0]) {
			return text, rest, nil
		}
		path, rest = append(slices.Clone(path), rest[0]), rest[1:]
	}
}

func children(text string) []string {
	var names []string
	_, list, _ := strings.Cut(text, "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for line := range strings.Lines(list) {
		if match := childLine.FindStringSubmatch(line); match != nil {
			names = append(names, match[1])
		}
	}

	return names
}

func flagsOf(text string) []string {
	var names []string
	for line := range strings.Lines(text) {
		if match := flagLine.FindStringSubmatch(line); match != nil {
			names = append(names, match[1], match[2])
		}
	}

	return names
}

func TestCommandsExist(t *testing.T) {
	t.Parallel()

	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	matches := target.FindAllSubmatch(makefile, -1)
	targets := make([]string, 0, len(matches))
	for _, match := range matches {
		targets = append(targets, string(match[1]))
	}

	ask := built(t)
	found := map[string]bool{}
	for _, p := range pages(t) {
		for _, c := range p.commands() {
			found[strings.Join(c.words[:min(len(c.words), 2)], " ")] = true
			if problem := c.problem(ask, targets); problem != "" {
				t.Error(problem)
			}
		}
	}
	for _, wanted := range []string{
		"make demo", "make test", "stayput image", "stayput node", "stayput status", "stayput retry", "stayput bmc",
	} {
		if !found[wanted] {
			t.Errorf("no page shows `%s`", wanted)
		}
	}
}

// built builds the programs, and asks each command once.
func built(t *testing.T) help {
	t.Helper()

	dir, known := t.TempDir(), map[string]string{}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "./cmd/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}

	return func(words ...string) (string, error) {
		key := strings.Join(words, " ")
		if text, ok := known[key]; ok {
			return text, nil
		}
		out, err := exec.CommandContext(t.Context(), filepath.Join(dir, words[0]), append(slices.Clone(words[1:]), "--help")...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("asking for help: %w: %s", err, out)
		}
		known[key] = string(out)

		return known[key], nil
	}
}

func TestWrongCommandsAreFound(t *testing.T) {
	t.Parallel()

	ask := func(words ...string) (string, error) {
		if len(words) == 1 {
			return "Available Commands:\n  image       Images\n\nFlags:\n  -h, --help   help\n", nil
		}

		return "Flags:\n  -n, --namespace string   x\n      --all   x\n", nil
	}
	p := parsePage("README.md", "Run `stayput image x --all` and `make demo`.\n"+fence+"\nsudo stayput image -n a \\\n  --none\n"+
		"stayput imagine | cat # stayput no\nbin/stayput image --all=true && make absent NODE=1\nstayput …\n"+fence+"\n")

	commands := p.commands()
	got := make([]string, 0, len(commands))
	for _, c := range commands {
		got = append(got, c.problem(ask, []string{"demo"}))
	}
	want := []string{
		"README.md: `sudo stayput image -n a    --none`: there is no flag --none",
		"README.md: `stayput imagine`: there is no command imagine", "",
		"README.md: `make absent NODE=1`: the Makefile has no target absent", "", "", "",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
