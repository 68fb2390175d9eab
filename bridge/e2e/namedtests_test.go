package e2e_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every test that the documentation names exists.
func TestNamedTests(t *testing.T) {
	t.Parallel()
	const root = "../.."
	declaration, name := regexp.MustCompile(`(?m)^func (Test\w+)\(`), regexp.MustCompile("`(Test[^` ]+)`")
	exists := map[string]bool{}
	must[any](t)(nil, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		for _, found := range declaration.FindAllStringSubmatch(string(must[[]byte](t)(os.ReadFile(path))), -1) {
			exists[found[1]] = true
		}
		return nil
	}))
	pages := must[[]string](t)(filepath.Glob(filepath.Join(root, "docs", "*.md")))
	named := 0
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		for _, found := range name.FindAllStringSubmatch(string(must[[]byte](t)(os.ReadFile(page))), -1) {
			if named++; !exists[found[1]] {
				t.Errorf("%s names %s, which is no test", filepath.Base(page), found[1])
			}
		}
	}
	if named < 100 {
		t.Errorf("the documentation names %d tests: this test tests nothing", named)
	}
}
