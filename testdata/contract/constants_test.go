package contract

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// constant is an exported text of package subjects.
type constant struct {
	name, kind, value string // kind is the type that it is declared with, if any
}

// constants reads the exported texts of package subjects from its source: what is added there is
// demanded here.
func constants(t *testing.T) []constant {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "subjects", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var all []constant
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			decl, ok := n.(*ast.GenDecl)
			if !ok || decl.Tok != token.CONST {
				return !ok
			}
			for _, spec := range decl.Specs {
				all = append(all, texts(t, spec.(*ast.ValueSpec))...)
			}
			return false
		})
	}
	if len(all) < 80 {
		t.Fatalf("%d constants, want more", len(all))
	}
	return all
}

func texts(t *testing.T, spec *ast.ValueSpec) (all []constant) {
	t.Helper()
	kind := ""
	if ident, ok := spec.Type.(*ast.Ident); ok {
		kind = ident.Name
	}
	for i, name := range spec.Names {
		if i >= len(spec.Values) || !name.IsExported() {
			continue
		}
		lit, ok := spec.Values[i].(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			continue
		}
		value, err := strconv.Unquote(lit.Value)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, constant{name: name.Name, kind: kind, value: value})
	}
	return all
}

// isHeader reports whether a constant is the name of a header.
func (c constant) isHeader() bool {
	return strings.HasPrefix(c.name, "Header") || strings.HasPrefix(c.name, "CE")
}

// valuesOf returns the sorted values of the constants that match.
func valuesOf(all []constant, match func(constant) bool) []string {
	var values []string
	for _, c := range all {
		if match(c) {
			values = append(values, c.value)
		}
	}
	slices.Sort(values)
	return values
}

func ofType(kind string) func(constant) bool {
	return func(c constant) bool { return c.kind == kind }
}

func named(prefix string) func(constant) bool {
	return func(c constant) bool { return strings.HasPrefix(c.name, prefix) }
}
