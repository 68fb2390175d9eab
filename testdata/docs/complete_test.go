package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const troubleshooting = "docs/troubleshooting.md"

// errorSources are the files with the errors that can end a start, by glob.
var errorSources = []string{
	"cmd/appbridge/*.go", "cmd/appbridge/config/[cfkl]*.go", "bridge/natsconn/*.go", "bridge/kube/errors.go", "bridge/watch/clusteruid.go",
	"bridge/store/durability.go", "bridge/store/create.go", "bridge/store/carry.go", "bridge/store/storage.go", "bridge/app/history.go", "bridge/bridge.go", "bridge/session.go",
}

// errorsWithoutEntry are texts of those files that docs/troubleshooting.md need not show, with the
// reason. A reason stands for all texts of its file that begin so.
var errorsWithoutEntry = map[string]string{
	"read the host name for the lease": "the operating system has no host name",
	"exit code ":                       "the error of a command that has printed its own",
	"set up ":                          "an option that the configuration has checked",
	"use JetStream":                    "an option that the configuration has checked",
	"version takes no arguments":       "`appbridge version` alone",
	"this process is stopping":         "a shutdown",
	"the NATS connection was closed":   "a shutdown",
	"JetStream is switched off":        "/readyz of a bridge that runs",
	"disk full":                        "/readyz of a bridge that runs",
	"the embedded NATS server cannot":  "/readyz of a bridge that runs",
	"the embedded NATS server is full": "/readyz of a bridge that runs",
	"read the INFO of the NATS server": "the reason of `waiting for NATS`",
	"it is empty":                      "the form of a wrong value",
	"it holds more than one line":      "the form of a wrong value",
	"it holds no user":                 "the form of a wrong value",
	"it holds no PEM block":            "the form of a wrong value",
	"is not the name of a namespace":   "the form of a wrong value",
	"carry %s ":                        "the reason of `waiting for JetStream`",
	"it has messages by now":           "the reason of `waiting for JetStream`",
	"read sequence ":                   "the reason of `waiting for JetStream`",
	"stream %s was made":               "the reason of `waiting for JetStream`",
	"stream %s was missing":            "the reason of `waiting for JetStream`",
	"asking for rights":                "the API server does not forbid the review without ending the check",
	"wrong form":                       "marks an error, is not printed",
}

var (
	verbForm  = regexp.MustCompile(`%[-+# 0]*[0-9]*(?:\.[0-9]+)?[a-zA-Z%]`)
	errorCall = regexp.MustCompile(`^(Errorf|New|add|refuse|Lacks|Explain|otherHistory|addSource)$`)
	errorKey  = regexp.MustCompile(`^(Problem|Repair|Text)$`)
)

// docs/troubleshooting.md shows every error that can end a start: each text of the source is there.
func TestTroubleshootingIsComplete(t *testing.T) {
	t.Parallel()
	page := shownTexts(readPage(t, troubleshooting))
	used := map[string]bool{}
	found := 0
	for _, glob := range errorSources {
		files, err := filepath.Glob(filepath.Join(root, glob))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files (%v)", glob, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, text := range errorTexts(t, file) {
				found++
				missing := ""
				for _, part := range verbForm.Split(text, -1) {
					if part = strings.Trim(part, " :;,(\"`."); len(part) > 7 && !strings.Contains(page, part) {
						missing = part
					}
				}
				if missing == "" {
					continue
				}
				if reason := reasonFor(text, used); reason == "" {
					t.Errorf("%s: %q can end a start, and %s has no %q", strings.TrimPrefix(file, root+"/"), text, troubleshooting, missing)
				}
			}
		}
	}
	if found < 80 {
		t.Errorf("%d texts were found, want at least 80: the search misses some", found)
	}
	for begins := range errorsWithoutEntry {
		if !used[begins] {
			t.Errorf("no error begins with %q, or the page has it", begins)
		}
	}
}

func reasonFor(text string, used map[string]bool) string {
	plain := strings.TrimPrefix(text, "%q ")
	for begins, reason := range errorsWithoutEntry {
		if strings.HasPrefix(text, begins) || strings.HasPrefix(plain, begins) {
			used[begins] = true
			return reason
		}
	}
	return ""
}

// shownTexts are the blocks and code spans of a page.
func shownTexts(p page) string {
	var all strings.Builder
	for _, s := range p.sections {
		for _, b := range s.blocks {
			all.WriteString(b.text)
		}
		all.WriteString(strings.Join(codeForm.FindAllString(s.prose, -1), "\n"))
	}
	return all.String()
}

// errorTexts are the texts of errors in a file, as formats.
func errorTexts(t *testing.T, file string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	collect := func(e ast.Expr) {
		ast.Inspect(e, func(n ast.Node) bool {
			if inner, ok := n.(*ast.CallExpr); ok && !strings.HasSuffix(nameOf(inner.Fun), "rintf") {
				return false
			}
			if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil && strings.Contains(text, " ") {
					texts = append(texts, text)
				}
			}
			return true
		})
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if errorCall.MatchString(nameOf(n.Fun)) {
				for _, arg := range n.Args {
					collect(arg)
				}
			}
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && errorKey.MatchString(key.Name) {
				collect(n.Value)
			}
		case *ast.FuncDecl:
			if n.Name.Name == "Error" && n.Recv != nil {
				for _, statement := range n.Body.List {
					if returned, ok := statement.(*ast.ReturnStmt); ok {
						collect(returned.Results[0])
					}
				}
			}
		}
		return true
	})
	slices.Sort(texts)
	return slices.Compact(texts)
}

func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}
