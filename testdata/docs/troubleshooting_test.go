package docs_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
)

// site is what one fault has: a NATS server, a cluster, and the files beside it.
type site struct {
	*shell
	world *testenv.Cluster // nil for a fault that needs none
	// options are those of appbridge.yaml.
	options map[string]string
}

// fault is one cause of an error of the page.
type fault struct {
	name    string
	section string
	args    []string // after `appbridge`; none: serve
	env     []string
	files   map[string]string
	// cause makes the fault.
	cause func(t *testing.T, s *site)
	// alone: it needs no cluster, since the program ends before it connects.
	alone bool
	code  int    // that the program ends with
	waits string // or what /readyz answers has this in it
	// repair is what a reader does beside the commands of the section, before them.
	repair func(t *testing.T, s *site)
	// repairs runs the commands of the section; again starts as before after them.
	repairs, again bool
}

// join gives a site the shared cluster.
func (s *site) join(t *testing.T) {
	t.Helper()
	s.world = cluster.Get(t)
	if err := s.world.Kubeconfig(filepath.Join(s.dir, "kubeconfig")); err != nil {
		t.Fatal(err)
	}
}

func (s *site) command(t *testing.T, f fault) *command {
	t.Helper()
	args := slices.Clone(f.args)
	if args == nil {
		args = []string{"serve"}
	}
	if s.options != nil {
		var config strings.Builder
		for _, name := range slices.Sorted(maps.Keys(s.options)) {
			fmt.Fprintf(&config, "%s: %q\n", name, s.options[name])
		}
		s.write(t, "appbridge.yaml", config.String())
		args = slices.Insert(args, 1, "--config", "appbridge.yaml")
	}
	for i, arg := range args {
		args[i] = "'" + arg + "'"
	}
	return s.start(t, "appbridge "+strings.Join(args, " "), f.env...)
}

func (s *site) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// texts are what a section shows of what the program prints, and whether it was seen.
type texts struct {
	lines []*text // of its blocks
	spans []*text // in the first column of its tables: parts of a line
}

type text struct {
	shown string
	form  *regexp.Regexp
	mu    sync.Mutex
	seen  bool
}

func newText(shown, before, after string) *text {
	quoted := strings.ReplaceAll(regexp.QuoteMeta(shown), "…", "(.*)")
	return &text{shown: shown, form: regexp.MustCompile(before + quoted + after)}
}

func (x *text) matches(line string) bool {
	if !x.form.MatchString(line) {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen = true
	return true
}

var firstColumn = regexp.MustCompile("(?m)^\\| `([^`]+)` \\|")

func textsOf(s section) *texts {
	x := &texts{}
	for _, b := range s.blocks {
		if b.language != "" {
			continue
		}
		for line := range strings.Lines(b.text) {
			x.lines = append(x.lines, newText(strings.TrimSuffix(line, "\n"), "^", "$"))
		}
	}
	for _, found := range firstColumn.FindAllStringSubmatch(s.prose, -1) {
		x.spans = append(x.spans, newText(found[1], "", ""))
	}
	return x
}

// has reports whether the section shows a printed line.
func (x *texts) has(line string) bool {
	found := false
	for _, shown := range x.lines {
		found = shown.matches(line) || found
	}
	spanned := len(x.spans) == 0
	for _, shown := range x.spans {
		spanned = shown.matches(line) || spanned
	}
	return found && spanned
}

// Each error of docs/troubleshooting.md is what the program prints when it has that cause, and the
// commands of its section repair it. What no cause here leads to is named with the reason.
func TestTroubleshooting(t *testing.T) {
	t.Parallel()
	kubesuite.Needed(t)
	p := readPage(t, troubleshooting)
	shown := map[string]*texts{}
	for _, s := range p.sections {
		shown[s.title] = textsOf(s)
	}
	general := shown["Configuration"]
	repaired := map[string]bool{}
	faults := slices.Concat(configFaults(), natsFaults(), kubeFaults(), storageFaults(), waitFaults())
	for _, f := range faults {
		repaired[f.section] = repaired[f.section] || f.repairs
	}
	t.Run("faults", func(t *testing.T) {
		for _, f := range faults {
			t.Run(f.section+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				s := &site{shell: newShell(t)}
				if !f.alone {
					s.join(t)
				} else {
					configtest.WriteKubeconfig(t, s.dir, "https://127.0.0.1:1")
				}
				f.play(t, s, p.section(t, f.section), shown[f.section], general)
			})
		}
	})
	if t.Failed() {
		return
	}
	elsewhere := errorsElsewhere()
	for _, s := range p.sections {
		x := shown[s.title]
		for _, one := range slices.Concat(x.lines, x.spans) {
			if reason := elsewhere[one.shown]; one.seen == (reason != "") {
				t.Errorf("%s, %q: seen: %t, but why not is %q: %s", troubleshooting, s.title, one.seen, reason, one.shown)
			}
			delete(elsewhere, one.shown)
		}
		for _, b := range s.blocks {
			if b.language == "sh" && !repaired[s.title] {
				t.Errorf("%s, %q: no fault runs its commands", troubleshooting, s.title)
			}
		}
	}
	for one := range elsewhere {
		t.Errorf("%s does not show %s", troubleshooting, one)
	}
}

// play makes the fault, compares what the program prints with the page, and repairs it.
func (f fault) play(t *testing.T, s *site, of section, shown, general *texts) {
	t.Helper()
	for name, content := range f.files {
		s.write(t, name, content)
	}
	if f.cause != nil {
		f.cause(t, s)
	}
	c := s.command(t, f)
	if f.waits != "" {
		c.until("it waits", func(answer string, _ bool) bool { return shown.has(answer) && strings.Contains(answer, f.waits) })
		c.interrupt()
	} else {
		if code := c.wait(); code != f.code {
			t.Errorf("exit code %d, want %d", code, f.code)
		}
		printed := 0
		for line := range strings.Lines(c.output()) {
			line = strings.TrimSuffix(line, "\n")
			if !strings.HasPrefix(line, "appbridge: ") {
				continue
			}
			printed++
			if !shown.has(line) && !general.has(line) {
				t.Errorf("the section does not show\n%s", line)
			}
		}
		if printed == 0 {
			t.Errorf("it printed no error:\n%s", c.output())
		}
	}
	if f.repair != nil && !t.Failed() {
		f.repair(t, s)
	}
	if f.repairs && !t.Failed() {
		ran := 0
		for _, b := range of.blocks {
			if b.language == "sh" {
				s.run(t, b)
				ran++
			}
		}
		if ran == 0 {
			t.Error("the section has no commands")
		}
	}
	if f.again && !t.Failed() {
		c := s.command(t, f)
		c.untilReady()
		if code := c.interrupt(); code != 0 {
			t.Errorf("exit code %d of a shutdown\n%s", code, c.output())
		}
	}
}

// errorsElsewhere are the texts of the page that no fault here leads to, with the reason.
func errorsElsewhere() map[string]string {
	const (
		embedded = "the embedded server's disk: TestFullDisk and the tests of package main have its errors"
		running  = "a bridge that runs has it: the tests of bridge/e2e plant it"
		shutdown = "a shutdown, not a start: the tests of packages bridge and main have it"
		etcd     = "TestRestored of bridge/e2e and the tests of bridge/app have it: another look at the same history"
	)
	return map[string]string{
		"appbridge: nats-embedded-dir …: lock the folder: …":                                                                                                                                                         embedded,
		"appbridge: embedded NATS server (nats-embedded-listen …, nats-embedded-dir …): …":                                                                                                                           embedded,
		"appbridge: embedded NATS server on …: not ready after 30s":                                                                                                                                                  embedded,
		`a NATS connection was closed for good; starting again with new ones {"error": "NATS at … closed the connection for good: nats: Maximum Payload Violation"}`:                                                 running,
		"event … on … was acknowledged at sequence …, where the stream has …":                                                                                                                                        running,
		"stream and bucket have not been checked for …: …":                                                                                                                                                           running,
		"the cluster's version has not been read for …: …":                                                                                                                                                           running,
		"no event of app … fits (apps: …): max_msg_size of stream … is … bytes, at least … are needed":                                                                                                               running,
		"no event of app … fits (apps: …): max_payload of the NATS server is … bytes, at least … are needed":                                                                                                         running,
		"the bucket is behind by …: it reflects sequence … of …: consume FLYTE_APPS: the NATS server refuses to deliver messages: …":                                                                                 running,
		`bucket "flyte-apps": its appbridge-stream-id is …, that of stream FLYTE_APPS is …: they do not belong together; restore the stream, or delete the bucket (nats kv del flyte-apps) to have it written again`: running,
		"appbridge: cluster \"uid …\": the address of the API server led to the cluster of uid … before: nothing of the other one is published; give each cluster a stream, bucket and prefix of its own; if this cluster replaces the other under its name, start once with --accept-reset": running,
		"appbridge: nats-nkey …: …":                                                                "the file changed after the configuration was checked",
		"appbridge: connect to NATS at …: …":                                                       "an option that the client refuses, which the configuration has checked",
		"appbridge: stopped with … changes unpublished; the next start publishes them":             shutdown,
		"appbridge: stopped with the bucket at sequence … of …; the next start goes on from there": shutdown,
		"appbridge: the NATS connection is closed: …":                                              shutdown,
		"appbridge: serve HTTP on …: …":                                                            shutdown,
		"a bridge with other options began to lead later; this one publishes nothing to stream FLYTE_APPS: --base-domain is \"apps.example.com\" here and \"new.example.com\" there; start it again with the same options as the other, or stop the other and start it again": "TestTwoShapes of bridge/e2e: the other bridge has to start later",
		"appbridge: cannot write the report: …": "TestVerifyReport of package main",
		"appbridge: cluster \"resourceVersion …\": its history is older than what was published (app … was deleted at version …, sequence …): etcd was restored, or this is another cluster; if that is intended, start once with --accept-reset: the stream then continues with what the cluster holds now": etcd,
		"appbridge: cluster \"resourceVersion …\": its history stepped back from version … under the running bridge: etcd was restored, or this is another cluster; if that is intended, start once with --accept-reset: the stream then continues with what the cluster holds now":                          etcd,
	}
}
