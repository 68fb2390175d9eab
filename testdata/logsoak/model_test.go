package main

import (
	"fmt"
	"strings"
	"testing"
)

// Each fault that is planted into what the reader gets is found, and counted as what it is.
func TestModel(t *testing.T) {
	t.Parallel()
	const missing, restarted = "# lines may be missing here", "# container app started again"
	for name, test := range map[string]struct {
		got  string // numbers, "same", or notes that begin with #
		want figures
	}{
		"all":                              {"0 1 same same 2 3 4 5", figures{lines: 8}},
		"lost":                             {"0 1 same same 2 4 5", figures{lines: 7, lost: 1}},
		"lost at a rotation":               {"0 1 same same 4 5", figures{lines: 6, lost: 2}},
		"a hole over a rotation":           {"0 1 same same;" + missing + ";4 5", figures{lines: 6, holes: 1, missing: 1, lost: 1, notes: 1}},
		"a hole up to a rotation":          {"0 1 same same;" + missing + ";3 4 5", figures{lines: 7, holes: 1, missing: 1, notes: 1}},
		"identical lines up to a rotation": {"0 1;" + missing + ";3 4 5", figures{lines: 5, holes: 1, missing: 1, notes: 1}},
		"a hole within a file":             {"0 1 same same 2 3;" + missing + ";5", figures{lines: 7, lost: 1, notes: 1}},
		"a hole with another note":         {"0 1 same same;" + restarted + ";3 4 5", figures{lines: 7, lost: 1, notes: 1}},
		"a note that is over":              {"0 1 same same;" + missing + ";2 4 5", figures{lines: 7, lost: 1, notes: 1}},
		"an identical line lost":           {"0 1 same 2 3 4 5", figures{lines: 7, lost: 1}},
		"an identical line repeated":       {"0 1 same same same 2 3 4 5", figures{lines: 9, repeated: 1}},
		"repeated":                         {"0 1 same same 2 3 2 3 4 5", figures{lines: 10, repeated: 2}},
		"repeated with a note":             {"0 1 same same 2 3;# up to 2 of them may be repeated;2 3 4 5", figures{lines: 10, notedRepeats: 2, notes: 1}},
		"out of order":                     {"0 1 same same 3 2 4 5", figures{lines: 8, lost: 1, disordered: 1}},
		"no line":                          {"0 1 same same 2 torn 3 4 5", figures{lines: 9, wrong: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newModel("log", t.Logf)
			m.add("", 0)
			m.add("", 2)
			m.add("", 0)
			m.newFile(true)
			m.add("", 0)
			m.add("", 0)
			m.add("", 0)
			for part := range strings.SplitSeq(test.got, ";") {
				if note, ok := strings.CutPrefix(part, "# "); ok {
					m.note(note, false)
					continue
				}
				for word := range strings.FieldsSeq(part) {
					switch word {
					case "same":
						m.read([]byte(sameLine + "\n"))
					case "torn":
						m.read([]byte("half of a line\n"))
					default:
						m.read(fmt.Appendf(nil, "some text n=%s\n", word))
					}
				}
			}
			if got := m.figures(); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
