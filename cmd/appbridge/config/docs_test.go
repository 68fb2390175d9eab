package config

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

// updateDocs is a flag of the test binary: `go test ./cmd/appbridge/config -update`.
var updateDocs = flag.Bool("update", false, "rewrite docs/configuration.md")

const docsPath = "../../../docs/configuration.md"

// TestDocs: docs/configuration.md says what the table of options says.
func TestDocs(t *testing.T) {
	want := renderDocs(documented(Serve))
	if *updateDocs {
		if err := os.WriteFile(docsPath, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/configuration.md differs from the options; `go test ./cmd/appbridge/config -update` writes it again\ngot:\n%s\nwant:\n%s", got, want)
	}
}

// TestDocsExample: the file that the page shows is a configuration.
func TestDocsExample(t *testing.T) {
	page, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the page shows no YAML")
	}
	cfg, set, err := load(Serve, []string{"--config", configtest.WriteFile(t, t.TempDir(), "appbridge.yaml", example)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(set), 1+strings.Count(example, ":\n")+strings.Count(example, ": "); got != want {
		t.Errorf("got %d settings, want %d", got, want)
	}
	if got, want := strings.Join(cfg.Namespaces, " "), "flyte team-a"; got != want {
		t.Errorf("got namespaces %q, want %q", got, want)
	}
}

func renderDocs(options []option) string {
	var b strings.Builder
	b.WriteString(`# Configuration of ` + "`appbridge serve`, `verify`, `logs` and `watch`" + `

Every option is a flag, an environment variable and a key of a YAML file. A flag wins over a
variable, a variable over the file, the file over the default. What is wrong is reported all at
once, one line for each field with the place it was set and what is allowed, and the program ends
with exit code 2. A value that another source overrides is not looked at.

` + "```yaml" + `
# appbridge serve --config appbridge.yaml
namespaces: [flyte, team-a]
cluster-name: production
nats-url:
- nats://nats-0.example.com:4222
- nats://nats-1.example.com:4222
stream-replicas: 3
stream-max-age: 720h
pending-bytes: 512Mi
` + "```" + `

- **File**: one mapping. An unknown key and a key given twice are errors. A key without a value
  counts as not set.
- **Variables**: an empty one counts as not set. An unknown one that begins with ` + "`" + variablePrefix + "`" + ` is an
  error; those that Kubernetes sets in every pod for a Service named ` + "`appbridge`" + ` are not.
- **Lists** (namespaces, urls, variables): separated by commas, as a YAML list, or the flag several times.
- **Variables of apps** (` + "`--default-env A=1,B=2`" + `): a comma inside a value is written ` + "`\\,`" + `, a backslash ` + "`\\\\`" + `;
  an item of a YAML list is taken as it is. Of a wrong text no value is printed.
- **Switches**: ` + "`--leader-elect`, `--leader-elect=false`" + `; ` + "`true` or `false`" + ` elsewhere.
- **Durations**: as in Go, ` + "`90s`, `1h30m`" + `. **Bytes**: a number or a Kubernetes quantity, ` + "`1048576`, `64Mi`" + `.
- **Files** must exist and hold what the option needs when the program starts. Those with credentials,
  keys and certificates for NATS are read again for each connection. Passwords belong in files: what an error or the log shows of a URL is never the user or the password.
- **JetStream domain**: with ` + "`--nats-jetstream-domain hub`" + ` the stream and the bucket are in the domain
  ` + "`hub`" + `, also when appbridge is connected to a leafnode with a domain of its own. Its user then publishes to
  ` + "`$JS.hub.API.>` in place of `$JS.API.>` and `$KV.>`" + `. Consumers need the domain as well
  (` + "`nats --js-domain hub`" + `). No stream of the leafnode's own domain may have the events' subjects: it
  would acknowledge them, too.
- **One file and one environment serve all commands**: ` + "`verify`, `logs` and `watch`" + ` take what their sections list and
  do not look at the rest.
- **Several bridges on one stream** need the same ` + "`--base-domain`, `--scheme`, `--ingress-port`, `--encoding` and `--pod-conditions`" + `:
  they shape the messages. The one that began to lead last publishes what looks different to it; one with other values stops
  publishing ([operate.md](operate.md#several-replicas)).
  Any of them answers a request: the options of app operations have to be the same as well.
`)
	renderTable(&b, options)
	b.WriteString(`
## Exit codes

| code | meaning |
| --- | --- |
| 0 | a clean shutdown after SIGTERM, SIGINT or SIGHUP: everything was flushed |
| 1 | a failure, a second signal during the shutdown, or a shutdown that could not flush everything |
| 2 | the command line or the configuration is wrong |

A shutdown that could not flush everything within ` + "`--flush-timeout`" + ` prints
` + "`stopped with N changes unpublished; the next start publishes them`" + `. Whatever
NATS does, the process ends about three seconds after that time at the latest. A signal less than
half a second after the first counts as the same one. SIGHUP that is ignored from the start, as under
` + "`nohup`" + `, stays ignored. A log whose reader is gone (SIGPIPE) stops nothing: the lines are lost.

## Options of ` + "`appbridge verify`" + `

[verify.md](verify.md) says what it does. Of the options above it takes ` + shared(documented(Verify)) + `,
with the same variables and keys; its default of ` + "`--log-level` is `" + Default(Verify).LogLevel + "`" + `. It does not run the embedded server: for
a bridge that does, ` + "`--nats-url`" + ` names the address of ` + "`--nats-embedded-listen`" + `. And of its own:
`)
	renderTable(&b, own(documented(Verify)))
	b.WriteString(`
## Options of ` + "`appbridge logs project/domain/app`" + `

Of the options above it takes ` + shared(documented(Logs)) + `,
with the same variables and keys, and ` + "`--timeout`" + `; its default of ` + "`--log-level` is `" + Default(Logs).LogLevel + "`, that of `--timeout` `" + shortDuration(Default(Logs).Timeout) + "`" + `. What
` + "`verify`" + ` needs for an embedded server it needs as well. It prints what there is and ends, or with ` + "`-f`" + ` goes on.
Lines go to standard output as they were written, notes of the service to standard error. It ends with 0 at the
end of the log, when the stream was stopped or has lasted ` + "`--max-duration`" + `, after Ctrl-C and when the reader of
its output is gone; with 1 when there is no such app, on a failure and when the stream broke off; with 2 when the
command line or the configuration is wrong. And of its own:
`)
	renderTable(&b, ofReader(Logs))
	b.WriteString(`
## Options of ` + "`appbridge watch [project[/domain[/app]]]`" + `

[watch.md](watch.md) shows what it prints and has its exit codes. Of the options above it takes
` + shared(documented(Watch)) + `,
with the same variables and keys, and ` + "`--timeout`" + `; its default of ` + "`--log-level` is `" + Default(Watch).LogLevel + "`, that of `--timeout` `" + shortDuration(Default(Watch).Timeout) + "`" + `. What
` + "`verify`" + ` needs for an embedded server it needs as well. And of its own:
`)
	renderTable(&b, ofReader(Watch))
	return b.String()
}

// documented are the options of a command with the defaults of serve.
func documented(command Command) []option {
	initial := Default(Serve)
	return command.options(&initial)
}

// shared lists those options that serve takes, too.
func shared(options []option) string {
	var names []string
	for _, o := range options {
		if o.commands&Serve != 0 {
			names = append(names, "`"+o.flag()+"`")
		}
	}
	return wrap(strings.Join(names, ", "), 60)
}

// ofReader are the options of `logs` or `watch` that neither serve nor verify takes.
func ofReader(command Command) []option {
	return slices.DeleteFunc(documented(command), func(o option) bool { return o.commands&forBridge != 0 })
}

// own leaves out those options that serve takes, too.
func own(options []option) []option {
	return slices.DeleteFunc(options, func(o option) bool { return o.commands&Serve != 0 })
}

// renderTable writes one table for each section.
func renderTable(b *strings.Builder, options []option) {
	title := ""
	for _, o := range options {
		if o.section != title {
			title = o.section
			fmt.Fprintf(b, "\n## %s\n\n| flag | variable | key | default | meaning |\n| --- | --- | --- | --- | --- |\n", title)
		}
		flagText := o.synopsis()
		key := "`" + o.name + "`"
		if o.notInFile {
			key = "-"
		}
		variable := "`" + o.variable() + "`"
		if o.onlyFlag {
			variable = "-"
		}
		value := "-"
		if text := o.text(); text != "" {
			value = "`" + text + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s. Allowed: %s |\n", cell(flagText), variable, key, cell(value), cell(strings.ToUpper(o.usage[:1])+o.usage[1:]), cell(o.want))
	}
}

// wrap breaks a text that begins somewhere in a line, first bytes before it.
func wrap(text string, first int) string {
	column := first
	words := strings.Fields(text)
	for i, word := range words {
		if column += len(word) + 1; column > 110 && i > 0 {
			words[i] = "\n" + word
			column = len(word) + 1
		}
	}
	return strings.ReplaceAll(strings.Join(words, " "), " \n", "\n")
}

// cell keeps a text from ending a cell of a table, and * from starting a stress.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, " * ", " `*` ").Replace(text)
}
