package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/cmd/appbridge/config"
	"github.com/appbridge/appbridge/logsvc/client"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/configtest"
)

const (
	podA = "search-shop-production-00001-deployment-5c9f-a"
	podB = "search-shop-production-00002-deployment-77d8-b"
)

// runLogs runs `appbridge logs` in an environment of its own.
func runLogs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	isolate(t)
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"logs"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

// logTime is the time before a line, as the service writes it.
func logTime(ns int) string {
	return time.Date(2026, 11, 21, 8, 51, 7, ns, time.UTC).Format("2006-01-02T15:04:05.000000000Z ")
}

func TestLogsPrints(t *testing.T) {
	two := func(v *logService) {
		v.replicas(podA)
		v.lines(podA, "alone\n")
		v.replicas(podA + "," + podB)
		v.lines(podA, "one\ntwo\n")
		v.lines(podB, "three \x1b[1mbold\x1b[0m\r\n")
		v.lines("elsewhere", "four\n")
		v.end(subjects.LogEndEOF)
	}
	notes := "# appbridge: replicas: " + podA + "\n# appbridge: replicas: " + podA + "," + podB + "\n"
	for _, test := range []struct {
		name           string
		args           string
		script         func(*logService)
		code           int
		stdout, stderr string
	}{
		{
			"one replica", "", func(v *logService) {
				v.replicas(podA)
				v.lines(podA, "one\ntwo\n")
				v.lines(podA, "\xff\x00three\n")
				v.end(subjects.LogEndEOF)
			}, exitOK, "one\ntwo\n\xff\x00three\n", "# appbridge: replicas: " + podA + "\n",
		},
		{
			"two replicas", "", two, exitOK,
			"alone\n00001-deployment-5c9f-a one\n00001-deployment-5c9f-a two\n00002-deployment-77d8-b three \x1b[1mbold\x1b[0m\r\nelsewhere four\n", notes,
		},
		{
			"always a prefix", "--replica-prefix always", two, exitOK,
			"00001-deployment-5c9f-a alone\n00001-deployment-5c9f-a one\n00001-deployment-5c9f-a two\n00002-deployment-77d8-b three \x1b[1mbold\x1b[0m\r\nelsewhere four\n", notes,
		},
		{"never a prefix", "--replica-prefix never --color always", two, exitOK, "alone\none\ntwo\nthree \x1b[1mbold\x1b[0m\r\nfour\n", notes},
		{
			"colors", "--color always", two, exitOK,
			"alone\n\x1b[36m00001-deployment-5c9f-a\x1b[0m one\n\x1b[36m00001-deployment-5c9f-a\x1b[0m two\n\x1b[32m00002-deployment-77d8-b\x1b[0m three \x1b[1mbold\x1b[0m\r\n\x1b[32melsewhere\x1b[0m four\n", notes,
		},
		{
			"not found", "", func(v *logService) {
				v.fail(subjects.CodeNotFound, "no app shop/production/search")
				v.end(subjects.LogEndError)
			}, exitFailure, "", "appbridge: no app shop/production/search (404 NotFound)\n",
		},
		{
			"fails in the middle", "", func(v *logService) {
				if len(v.requests()) == 1 {
					v.replicas(podA)
					v.lines(podA, "one\n")
					v.fail(subjects.CodeUnavailable, "Kubernetes is unavailable")
					v.end(subjects.LogEndError)
					return
				}
				v.replicas(podA)
				v.lines(podA, "two\n")
				v.fail(subjects.CodePermissionDenied, "not any more")
				v.end(subjects.LogEndError)
			}, exitFailure, "one\ntwo\n", "# appbridge: replicas: " + podA + "\nappbridge: not any more (403 PermissionDenied)\n",
		},
		{
			"stalled", "--timestamps", func(v *logService) {
				v.replicas(podA)
				if len(v.requests()) == 1 {
					v.lines(podA, logTime(1)+"one\n")
					v.end(subjects.LogEndStalled)
					return
				}
				v.lines(podA, logTime(2)+"two\n")
				v.end(subjects.LogEndEOF)
			}, exitOK, logTime(1) + "one\n" + logTime(2) + "two\n", "# appbridge: replicas: " + podA + "\n",
		},
		{
			"shutdown", "", func(v *logService) {
				if len(v.requests()) == 1 {
					v.end(subjects.LogEndShutdown)
					return
				}
				v.lines(podA, "one\n")
				v.end(subjects.LogEndEOF)
			}, exitOK, "one\n", "",
		},
		{"stopped", "", func(v *logService) { v.end(subjects.LogEndStopped) }, exitOK, "", "# appbridge: the stream was stopped\n"},
		{"max duration", "--max-duration 1s", func(v *logService) { v.end(subjects.LogEndMaxDuration) }, exitOK, "", "# appbridge: the stream has lasted as long as it may\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startNATS(t, server.Options{})
			serveLogs(t, s, test.script)
			args := append(strings.Fields(test.args), "shop/production/search", "--nats-url", s.ClientURL())
			code, stdout, stderr := runLogs(t, args...)
			if code != test.code {
				t.Errorf("got exit code %d, want %d", code, test.code)
			}
			if diff := cmp.Diff(stdout, test.stdout); diff != "" {
				t.Errorf("stdout: got - want +:\n%s", diff)
			}
			if diff := cmp.Diff(stderr, test.stderr); diff != "" {
				t.Errorf("stderr: got - want +:\n%s", diff)
			}
		})
	}
}

// TestLogsRequest: what the flags become on the wire.
func TestLogsRequest(t *testing.T) {
	for args, want := range map[string]string{
		"":                     `{"tail":1000,"follow":false,"format":"raw","window":16,"positions":true}`,
		"-f --tail 5":          `{"tail":5,"follow":true,"format":"raw","window":16,"positions":true}`,
		"--tail=0":             `{"tail":0,"follow":false,"format":"raw","window":16,"positions":true}`,
		"--since 10m":          `{"since":"10m0s","follow":false,"format":"raw","window":16,"positions":true}`,
		"--tail all":           `{"tail":"all","follow":false,"format":"raw","window":16,"positions":true}`,
		"--since start":        `{"since":"start","follow":false,"format":"raw","window":16,"positions":true}`,
		"--since 10m --tail 3": `{"tail":3,"since":"10m0s","follow":false,"format":"raw","window":16,"positions":true}`,
		"--since-time 2026-01-02T03:04:05.6+01:00 -pc web":                                   `{"container":"web","since_time":"2026-01-02T03:04:05.6+01:00","follow":false,"previous":true,"format":"raw","window":16,"positions":true}`,
		"--replica pod --timestamps --include a|b --exclude ^$ --max-duration 1h --window 7": `{"replica":"pod","tail":1000,"follow":false,"timestamps":true,"include":"a|b","exclude":"^$","format":"raw","window":7,"max_duration":"1h0m0s","positions":true}`,
	} {
		t.Run(args, func(t *testing.T) {
			s := startNATS(t, server.Options{})
			v := serveLogs(t, s, func(v *logService) { v.end(subjects.LogEndEOF) })
			if code, _, stderr := runLogs(t, append(strings.Fields(args), "--nats-url", s.ClientURL(), "shop/production/search")...); code != exitOK {
				t.Fatalf("got exit code %d: %s", code, stderr)
			}
			if diff := cmp.Diff(v.requests(), []string{"shop/production/search " + want}); diff != "" {
				t.Errorf("got - want +:\n%s", diff)
			}
		})
	}
}

func TestLogsNamesOfApps(t *testing.T) {
	s := startNATS(t, server.Options{})
	v := serveLogs(t, s, func(v *logService) { v.end(subjects.LogEndEOF) })
	if code, _, stderr := runLogs(t, "--prefix", "flyte.apps", "--nats-url", s.ClientURL(), "--", "a b/c.d/-e/f"); code != exitOK {
		t.Fatalf("got exit code %d: %s", code, stderr)
	}
	if got, want := v.requests()[0], "a b/c.d/-e/f "; !strings.HasPrefix(got, want) {
		t.Errorf("got request %q, want one for %q", got, want)
	}
}

func TestLogsUsage(t *testing.T) {
	dir := t.TempDir()
	embedded := configtest.WriteFile(t, dir, "embedded.yaml", "nats-embedded: true\nnats-embedded-listen: 127.0.0.1:4333\n")
	tailFile := configtest.WriteFile(t, dir, "tail.yaml", "tail: 1\n")
	const want = "want project/domain/app, for example shop/production/search\n"
	for _, test := range []struct {
		name string
		args []string
		want []string
	}{
		{"no app", nil, []string{"appbridge: no app to print the log of: " + want}},
		{"two apps", []string{"a/b/c", "d/e/f"}, []string{`appbridge: "d/e/f": unexpected argument: one app at a time, ` + want}},
		{"half an app", []string{"search"}, []string{`appbridge: "search": not an app: ` + want}},
		{"empty domain", []string{"shop//search"}, []string{`appbridge: "shop//search": not an app: ` + want}},
		{"no name", []string{"shop/production/"}, []string{`appbridge: "shop/production/": not an app: ` + want}},
		{"long name", []string{"a/b/" + strings.Repeat("c", 3000)}, []string{want}},
		{"negative tail", []string{"a/b/c", "--tail=-1"}, []string{`appbridge: tail: "-1" from --tail: want all, or a whole number from 0 to 1000000000`}},
		{"bad since", []string{"a/b/c", "--since=yesterday"}, []string{`since: "yesterday" from --since: want start, or 0 or a duration`}},
		{"bad time", []string{"a/b/c", "--since-time=noon"}, []string{`since-time: "noon" from --since-time: want a time like 2026-11-21T08:51:07Z (RFC 3339)`}},
		{"two beginnings", []string{"a/b/c", "--since=1m", "--since-time=2026-11-21T08:51:07Z"}, []string{"since (from --since) contradicts since-time (from --since-time): both set the beginning; leave one of the two out"}},
		{"bad expression", []string{"a/b/c", "--include=("}, []string{`include: "(" from --include: error parsing regexp: missing closing ): ` + "`(`; want a regular expression (RE2)"}},
		{"bad window", []string{"a/b/c", "--window=1025"}, []string{"window: \"1025\" from --window: want a whole number from 0 to 1024"}},
		{"bad color", []string{"a/b/c", "--color=red"}, []string{"color: \"red\" from --color: want auto, always or never"}},
		{"letter without value", []string{"a/b/c", "-c"}, []string{"container: -c has no value: want the name of a container"}},
		{"unknown letter", []string{"a/b/c", "-fz"}, []string{"-z: unknown flag"}},
		{"a flag of serve", []string{"a/b/c", "--stream=S"}, []string{"--stream: a flag of another command"}},
		{"in the file", []string{"a/b/c", "--config", tailFile}, []string{"tail.yaml:tail (line 1): unknown key"}},
		{"embedded server", []string{"a/b/c", "--config", embedded}, []string{"): logs runs no server: want nats-url with the address", "for example --nats-url nats://127.0.0.1:4333\n"}},
		{"several", []string{"x", "--timeout=0", "--tail=x"}, []string{"timeout: \"0\"", "tail: \"x\"", "\"x\": not an app"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := runLogs(t, test.args...)
			if code != exitUsage || stdout != "" {
				t.Errorf("got exit code %d and stdout %q", code, stdout)
			}
			for _, want := range append(test.want, "the configuration is wrong; `appbridge logs --help` lists every option\n") {
				if !strings.Contains(stderr, want) {
					t.Errorf("got stderr\n%s\nwant %q in it", stderr, want)
				}
			}
		})
	}
}

func TestLogsHelp(t *testing.T) {
	code, stdout, stderr := runLogs(t, "--help")
	if code != exitOK || stderr != "" {
		t.Errorf("got exit code %d and stderr %q", code, stderr)
	}
	for _, want := range []string{"Usage:\n  appbridge logs [flags] project/domain/app\n", "  -f, --follow\n", "(default warn)", "(default 10s)", "Exit codes: 0 "} {
		if !strings.Contains(stdout, want) {
			t.Errorf("the help text lacks %q:\n%s", want, stdout)
		}
	}
	for _, bad := range []string{"--kubeconfig", "--stream", "--confirm-for", "--leader-elect"} {
		if strings.Contains(stdout, bad) {
			t.Errorf("the help text has %s", bad)
		}
	}
}

func TestLogsFailures(t *testing.T) {
	s := startNATS(t, server.Options{})
	locked := startNATS(t, server.Options{Users: []*server.User{{Username: "u", Password: "right"}}})
	silent := startNATS(t, server.Options{})
	serveLogs(t, silent, func(*logService) {})
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"no server", []string{"--nats-url", "nats://" + unusedAddress(t), "--timeout", "4s", "--log-level", "error"}, " did not answer within 4s: dial tcp "},
		{"refused", []string{"--nats-url", "nats://u:wrong@" + locked.Addr().String()}, "appbridge: NATS at nats://" + locked.Addr().String() + " refuses this client: "},
		{"no service", []string{"--nats-url", s.ClientURL()}, "appbridge: nobody serves logs on flyte.apps.logs.tail.shop.production.search: no bridge with this prefix is connected"},
		{"no answer", []string{"--nats-url", silent.ClientURL(), "--timeout", "4s"}, "appbridge: no answer on flyte.apps.logs.tail.shop.production.search within 4s\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := runLogs(t, append(test.args, "shop/production/search")...)
			if code != exitFailure || stdout != "" || !strings.Contains(stderr, test.want) {
				t.Errorf("got exit code %d, stdout %q, stderr %q; want %q in it", code, stdout, stderr, test.want)
			}
			if strings.Contains(stderr, "wrong") {
				t.Errorf("the password is in %q", stderr)
			}
		})
	}
}

func TestColored(t *testing.T) {
	for _, test := range []struct {
		choice        config.When
		terminal      bool
		noColor, term string
		want          bool
	}{
		{config.WhenAuto, true, "", "xterm", true},
		{config.WhenAuto, false, "", "xterm", false},
		{config.WhenAuto, true, "1", "xterm", false},
		{config.WhenAuto, true, "", "dumb", false},
		{config.WhenAlways, false, "1", "dumb", true},
		{config.WhenNever, true, "", "xterm", false},
	} {
		t.Setenv("NO_COLOR", test.noColor)
		t.Setenv("TERM", test.term)
		if got := colored(test.choice, test.terminal); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
}

// BenchmarkLogPrinter prints batches of 120-byte lines.
func BenchmarkLogPrinter(b *testing.B) {
	body := []byte(strings.Repeat(strings.Repeat("x", 119)+"\n", 270))
	app := subjects.AppID{Project: "shop", Domain: "production", Name: "search"}
	for _, prefix := range []config.When{config.WhenNever, config.WhenAlways} {
		b.Run("prefix "+string(prefix), func(b *testing.B) {
			cfg := config.Default(config.Logs)
			cfg.ReplicaPrefix, cfg.App = prefix, app
			p := newLogPrinter(cfg, io.Discard, io.Discard)
			m := &client.Message{Kind: client.Lines, Replica: podA, Body: body, More: true}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.take(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
