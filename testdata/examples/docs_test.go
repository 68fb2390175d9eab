package examples_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "../../docs/consuming.md"

// Each block of Go in docs/consuming.md that reads with appwatch or JetStream is a part of an example, so
// that it compiles and runs.
func TestDocumentedCodeIsThatOfExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	sources := ""
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(source)
	}
	blocks := 0
	for _, block := range strings.Split(string(text), "\n```go\n")[1:] {
		block, _, _ = strings.Cut(block, "\n```")
		if strings.Contains(block, "nats_jetstream.") {
			continue // of the CloudEvents SDK, which testdata/contract runs
		}
		blocks++
		if !strings.Contains(sources, block+"\n") {
			t.Errorf("%s: no example has\n%s", page, block)
		}
	}
	if blocks < 4 {
		t.Errorf("%d blocks were found, want at least 4", blocks)
	}
}

// What each of the three users of appwatch writes: the function with the loop, and the program. The
// page has the same numbers.
func TestLinesOfUserCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		user, dir, file, function string
		most                      int
	}{
		{"service", "react", "main.go", "react", 25},
		{"auditor", "audit", "main.go", "record", 28},
		{"operator", "operator", "main.go", "follow", 20},
	} {
		files, err := filepath.Glob(filepath.Join(c.dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		program, function := 0, 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			all, of := lines(t, file, c.function)
			program, function = program+all, function+of
		}
		if cells := fmt.Sprintf("| %d (`%s`) | %d |", function, c.function, program); !strings.Contains(string(text), cells) {
			t.Errorf("%s, %s: the page does not have %s", page, c.user, cells)
		}
		if function == 0 || function > c.most {
			t.Errorf("%s: %s has %d lines, want at most %d", c.dir, c.function, function, c.most)
		}
	}
}

// lines counts the lines of a file, and of a function in it, that are neither empty nor a comment.
func lines(t *testing.T, file, function string) (all, of int) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, last := 0, 0
	for _, decl := range parsed.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Name.Name == function && f.Recv == nil {
			first, last = files.Position(f.Pos()).Line, files.Position(f.End()).Line
		}
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		all++
		if i+1 >= first && i+1 <= last {
			of++
		}
	}
	return all, of
}
