package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var link = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()

	all := pages(t)
	count := 0
	for _, p := range all {
		count += len(p.links())
		for _, problem := range p.deadLinks(all) {
			t.Error(problem)
		}
	}
	if count < len(all) {
		t.Errorf("found %d links only", count)
	}
}

// links are the relative ones.
func (p page) links() []string {
	var links []string
	for _, match := range link.FindAllStringSubmatch(strings.Join(p.prose, "\n"), -1) {
		if !strings.Contains(match[1], "://") && !strings.HasPrefix(match[1], "mailto:") {
			links = append(links, match[1])
		}
	}

	return links
}

func (p page) deadLinks(all []page) []string {
	var problems []string
	for _, target := range p.links() {
		file, anchor, _ := strings.Cut(target, "#")
		path := p.path
		if file != "" {
			path = filepath.Join(filepath.Dir(p.path), file)
		}
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			problems = append(problems, fmt.Sprintf("%s links to %s, which does not exist", p.path, target))

			continue
		}
		found := slices.IndexFunc(all, func(other page) bool { return other.path == path })
		if anchor != "" && (found < 0 || !all[found].anchors()[anchor]) {
			problems = append(problems, fmt.Sprintf("%s links to %s, which has no such heading", p.path, target))
		}
	}

	return problems
}

// anchors are the names that GitHub gives to headings.
func (p page) anchors() map[string]bool {
	anchors := map[string]bool{}
	for _, line := range p.prose {
		if level, text := heading(line); level > 0 {
			anchors[anchorOf(text)] = true
		}
	}

	return anchors
}

func anchorOf(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, heading)
}

func TestDeadLinksAreFound(t *testing.T) {
	t.Parallel()

	p := parsePage("README.md", "# A b, `c`: d's\n[1](go.mod) [2](nowhere.md) [3](#a-b-c-ds) [4](#other) [5](https://example.org/x)\n"+
		"```\n[6](nowhere-either.md)\n```\n")

	got := strings.Join(p.deadLinks([]page{p}), "\n")
	want := "README.md links to nowhere.md, which does not exist\nREADME.md links to #other, which has no such heading"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
