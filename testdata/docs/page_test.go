package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the top of the repository.
var root = filepath.Join("..", "..")

// page is a Markdown file.
type page struct {
	path     string // below root
	sections []section
}

// section is a part of a page from one heading to the next.
type section struct {
	title  string
	line   int // of the heading
	blocks []block
	prose  string // without the blocks
}

// block is a fenced block.
type block struct {
	language string
	line     int
	text     string
}

// pages are README.md and the pages of docs/.
func pages(t *testing.T) []page {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := []page{readPage(t, "README.md")}
	for _, file := range files {
		all = append(all, readPage(t, filepath.Join("docs", filepath.Base(file))))
	}
	return all
}

func readPage(t *testing.T, path string) page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	p := page{path: path, sections: []section{{}}}
	var open *block
	for i, line := range strings.Split(string(text), "\n") {
		s := &p.sections[len(p.sections)-1]
		fence, isFence := strings.CutPrefix(strings.TrimSpace(line), "```")
		title := heading(line)
		switch {
		case isFence && open == nil:
			open = &block{language: fence, line: i + 1}
		case isFence:
			s.blocks = append(s.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case title != "":
			p.sections = append(p.sections, section{title: title, line: i + 1})
		default:
			s.prose += line + "\n"
		}
	}
	if open != nil {
		t.Fatalf("%s:%d: the block has no end", path, open.line)
	}
	return p
}

var headingForm = regexp.MustCompile(`^#{1,6} +(.*?) *$`)

func heading(line string) string {
	if found := headingForm.FindStringSubmatch(line); found != nil {
		return found[1]
	}
	return ""
}

// section is the one with a title.
func (p page) section(t *testing.T, title string) section {
	t.Helper()
	i := slices.IndexFunc(p.sections, func(s section) bool { return s.title == title })
	if i < 0 {
		t.Fatalf("%s has no section %q", p.path, title)
	}
	return p.sections[i]
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors are those that GitHub makes of the headings.
func (p page) anchors() map[string]bool {
	anchors := map[string]bool{}
	for _, s := range p.sections {
		anchors[strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(s.title), ""), " ", "-")] = true
	}
	return anchors
}
