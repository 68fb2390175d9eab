package subjects_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

// parsePackage parses the files of the package without its tests.
func parsePackage(t *testing.T) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
	}
	return files
}

// docWords returns the words of the package comment.
func docWords(t *testing.T) map[string]bool {
	t.Helper()
	words := map[string]bool{}
	for word := range strings.FieldsSeq(parsePackage(t)["doc.go"].Doc.Text()) {
		words[word] = true
		for item := range strings.SplitSeq(strings.Trim(word, "(),.;:"), ",") {
			words[item] = true
		}
	}
	return words
}

// Whoever links this package to speak the contract gets nothing else with it.
func TestStandardLibraryOnly(t *testing.T) {
	t.Parallel()
	for name, file := range parsePackage(t) {
		for _, spec := range file.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
				t.Errorf("%s imports %s", name, path)
			}
		}
	}
}

// The contract in prose mentions every exported string and number on the wire.
func TestDocNamesEveryConstant(t *testing.T) {
	t.Parallel()
	words, doc := docWords(t), parsePackage(t)["doc.go"].Doc.Text()
	found := 0
	for _, file := range parsePackage(t) {
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				value := spec.(*ast.ValueSpec)
				for i, name := range value.Names {
					if !name.IsExported() || i >= len(value.Values) {
						continue
					}
					lit, ok := value.Values[i].(*ast.BasicLit)
					if !ok || strings.HasPrefix(name.Name, "Max") {
						continue
					}
					text := lit.Value
					if lit.Kind == token.STRING {
						var err error
						if text, err = strconv.Unquote(lit.Value); err != nil {
							t.Fatal(err)
						}
					}
					found++
					phrase := strings.TrimSpace(text)
					if !onWire(words, text) && (!strings.Contains(phrase, " ") || !strings.Contains(doc, phrase)) {
						t.Errorf("doc.go does not show %s = %q", name.Name, text)
					}
				}
			}
		}
	}
	if want := 80; found < want {
		t.Errorf("found %d constants, want at least %d", found, want)
	}
}

// onWire reports whether the text is a word of the doc, or a token of one of its
// subjects.
func onWire(words map[string]bool, text string) bool {
	if words[text] {
		return true
	}
	for word := range words {
		if strings.HasPrefix(word, "flyte.apps.") && strings.Contains(word+".", "."+text+".") {
			return true
		}
	}
	return false
}

// The subjects that the contract shows are subjects of the contract.
func TestDocShowsRealSubjects(t *testing.T) {
	t.Parallel()
	s := newSubjects(t, subjects.DefaultPrefix)
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}
	words := docWords(t)
	for subject := range allSubjects(t, s, id, "Vq2dG0") {
		if !words[subject] {
			t.Errorf("doc.go does not show %q", subject)
		}
		delete(words, subject)
	}
	for word := range words {
		if !strings.HasPrefix(word, "flyte.apps.") && !strings.HasPrefix(word, "$KV.") || strings.ContainsAny(word, "*>") {
			continue
		}
		t.Errorf("doc.go shows %q, which is no subject of %q", word, id)
	}
}
