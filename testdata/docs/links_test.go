package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	linkForm = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeForm = regexp.MustCompile("`[^`]*`")
)

// Each relative link of README.md and docs/ names a file, and each anchor a heading of it.
func TestLinks(t *testing.T) {
	anchors := map[string]map[string]bool{}
	for _, p := range pages(t) {
		anchors[p.path] = p.anchors()
	}
	links := 0
	for _, p := range pages(t) {
		for _, s := range p.sections {
			for _, found := range linkForm.FindAllStringSubmatch(codeForm.ReplaceAllString(s.prose, "``"), -1) {
				target := found[1]
				if strings.Contains(target, "://") {
					continue
				}
				links++
				file, anchor, _ := strings.Cut(target, "#")
				path := p.path
				if file != "" {
					path = filepath.Join(filepath.Dir(p.path), file)
				}
				if _, err := os.Stat(filepath.Join(root, path)); err != nil {
					t.Errorf("%s, %q: the link %s names no file", p.path, s.title, target)
				} else if anchor != "" && !anchors[path][anchor] {
					t.Errorf("%s, %q: %s has no heading for #%s", p.path, s.title, path, anchor)
				}
			}
		}
	}
	if links < 20 {
		t.Errorf("%d links were found, want at least 20", links)
	}
}
