package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	root  = "../.."
	guide = "docs/operator-guide.md"
	fence = "```"
)

// page is a Markdown file, cut into what is fenced and what is not.
type page struct {
	// path is relative to the root of the repository.
	path   string
	prose  []string
	blocks []block
}

// block is a fenced block.
type block struct {
	language, text string
}

func parsePage(path, text string) page {
	p := page{path: path}
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		language, isFence := strings.CutPrefix(strings.TrimSpace(line), fence)
		switch {
		case isFence && !fenced:
			fenced = true
			p.blocks = append(p.blocks, block{language: language})
		case isFence:
			fenced = false
		case fenced:
			p.blocks[len(p.blocks)-1].text += line + "\n"
		default:
			p.prose = append(p.prose, line)
		}
	}

	return p
}

func readPage(t *testing.T, path string) page {
	t.Helper()

	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}

	return parsePage(path, string(text))
}

// pages are all that people read first.
func pages(t *testing.T) []page {
	t.Helper()

	found, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}

	for i := range found {
		found[i] = filepath.Join("docs", filepath.Base(found[i]))
	}
	found = append(found, "README.md", "CONTRIBUTING.md")
	all := make([]page, 0, len(found))
	for _, path := range found {
		all = append(all, readPage(t, path))
	}

	return all
}

// heading gives a heading's level and text, 0 for a line that is none.
func heading(line string) (level int, text string) {
	text = strings.TrimLeft(line, "#")
	level = len(line) - len(text)
	if !strings.HasPrefix(text, " ") {
		return 0, ""
	}

	return level, strings.TrimSpace(text)
}

// rows are those rows of a section's tables whose first cell is `code`, without the backticks around it.
func (p page) rows(section string) [][]string {
	var rows [][]string
	within := 0
	for _, line := range p.prose {
		if level, text := heading(line); level > 0 && (within == 0 || level <= within) {
			within = 0
			if text == section {
				within = level
			}
		}
		inner, isRow := strings.CutPrefix(strings.TrimSpace(line), "| `")
		if within == 0 || !isRow {
			continue
		}
		cells := strings.Split(strings.TrimSuffix(inner, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		cells[0] = strings.TrimSuffix(cells[0], "`")
		rows = append(rows, cells)
	}

	return rows
}

// codeSpans are the inline code of the prose.
func (p page) codeSpans() []string {
	matches := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.Join(p.prose, "\n"), -1)
	spans := make([]string, 0, len(matches))
	for _, match := range matches {
		spans = append(spans, match[1])
	}

	return spans
}
