package main

import (
	"bytes"
	"testing"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
)

func TestForTerminal(t *testing.T) {
	for _, test := range []struct{ name, in, want string }{
		{"plain", "one\ttwo ~\n", "one\ttwo ~\n"},
		{"no end", "one", "one"},
		{"empty lines", "\n\n", "\n\n"},
		{"text of the world", "naïve 日本 🙂 שלום \u200f\n", "naïve 日本 🙂 שלום \u200f\n"},
		{"colors", "\x1b[1;38;5;9mred\x1b[0m \x1b[4:3mcurl\x1b[m.\n", "\x1b[1;38;5;9mred\x1b[0m \x1b[4:3mcurl\x1b[m.\n"},
		{"colors that do not end", "\x1b[31mred\nplain\n", "\x1b[31mred\x1b[0m\nplain\n"},
		{"clipboard", "\x1b]52;c;cm0=\x07\n", `\x1b]52;c;cm0=\x07` + "\n"},
		{"title with ST", "\x1b]0;root@prod\x1b\\\n", `\x1b]0;root@prod\x1b\` + "\n"},
		{"DCS, APC, PM", "\x1bP+q\x1b_x\x1b^y\n", `\x1bP+q\x1b_x\x1b^y` + "\n"},
		{"cursor and screen", "\x1b[2J\x1b[1A\x1b[6n\x1bc\x1b[?25l\n", `\x1b[2J\x1b[1A\x1b[6n\x1bc\x1b[?25l` + "\n"},
		{"like a color", "\x1b[>4;2m\x1b[31\x1b[3 m\x1b[\n", `\x1b[>4;2m\x1b[31\x1b[3 m\x1b[` + "\n"},
		{"C1 in UTF-8", "\u009b31m\u009d0;x\u009c\u0085\n", `\u009b31m\u009d0;x\u009c\u0085` + "\n"},
		{"C1 as bytes", "\x9b31m\x90\xff\xc3\n", `\x9b31m\x90\xff\xc3` + "\n"},
		{"carriage return", "50%\r100%\r\r\n", `50%\x0d100%` + "\n"},
		{"backspace, NUL, bell, DEL", "a\b\x00\a\x7f\v\f\n", `a\x08\x00\x07\x7f\x0b\x0c` + "\n"},
		{"reordered text", "a\u202eb\u2066c\u2069\u2028\n", `a\u202eb\u2066c\u2069\u2028` + "\n"},
		{"the replacement character itself", "\ufffd\n", "\ufffd\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := string(forTerminal(nil, []byte(test.in))); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func FuzzForTerminal(f *testing.F) {
	f.Add([]byte("\x1b[31mred\x1b]0;x\x07\u009b\n\xff"))
	f.Fuzz(func(t *testing.T, body []byte) {
		out := forTerminal(nil, body)
		if bytes.Count(out, []byte("\n")) != bytes.Count(body, []byte("\n")) {
			t.Errorf("%q became %q", body, out)
		}
		for i := range out {
			if out[i] < ' ' && out[i] != '\n' && out[i] != '\t' && len(sgr.Find(out[i:])) == 0 || out[i] == 0x7f || bytes.HasPrefix(out[i:], []byte("\xc2\x9b")) {
				t.Fatalf("%q became %q", body, out)
			}
		}
	})
}

// TestLogPrinterEscapes: a terminal gets no control sequences of an app but colors, unless
// it is asked for; a pipe gets the bytes.
func TestLogPrinterEscapes(t *testing.T) {
	const text = "ok\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2J\x1b[32mgreen\x9b31m\n"
	const safe = `ok\x1b]52;c;cm0gLXJmIH4K\x07\x1b[2J` + "\x1b[32mgreen" + `\x9b31m` + "\x1b[0m\n"
	for _, test := range []struct {
		name     string
		terminal bool
		raw      bool
		want     string
	}{{"terminal", true, false, safe}, {"raw output", true, true, text}, {"pipe", false, false, text}} {
		t.Run(test.name, func(t *testing.T) {
			var out, notes bytes.Buffer
			cfg := config.Default(config.Logs)
			cfg.RawOutput = test.raw
			cfg.App = subjects.AppID{Project: "shop", Domain: "dev", Name: "x"}
			p := newLogPrinter(cfg, &out, &notes)
			p.onTerminal(test.terminal, test.terminal, cfg)
			for _, m := range []*client.Message{{Kind: client.Lines, Replica: "pod", Body: []byte(text)}, {Kind: client.Note, Body: []byte(text)}} {
				if err := p.take(m); err != nil {
					t.Fatal(err)
				}
			}
			if out.String() != test.want || notes.String() != test.want {
				t.Errorf("got %q and notes %q, want %q", out.String(), notes.String(), test.want)
			}
		})
	}
}
