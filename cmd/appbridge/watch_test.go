package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// publishedApps writes a stream and a bucket with apps as a bridge does.
type publishedApps struct {
	tb    testing.TB
	js    jetstream.JetStream
	names subjects.Subjects
}

func newPublishedApps(tb testing.TB, url string) *publishedApps {
	tb.Helper()
	nc, err := nats.Connect(url, nats.Timeout(suite.Patience), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	p := &publishedApps{tb: tb}
	if p.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience), jetstream.WithPublishAsyncMaxPending(512)); err != nil {
		tb.Fatal(err)
	}
	if p.names, err = subjects.New(subjects.DefaultPrefix); err != nil {
		tb.Fatal(err)
	}
	metadata := map[string]string{subjects.MetadataStreamID: "pX2mVQkQGm3rXo0dJq8b1w"}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: subjects.DefaultStream, Subjects: []string{p.names.Events()}, Metadata: metadata},
		{
			Name: subjects.BucketStream(subjects.DefaultBucket), Subjects: []string{subjects.BucketFilter(subjects.DefaultBucket)},
			MaxMsgsPerSubject: 1, AllowDirect: true, AllowRollup: true, Discard: jetstream.DiscardNew, Metadata: metadata,
		},
	} {
		if _, err := p.js.CreateStream(tb.Context(), cfg); err != nil {
			tb.Fatal(err)
		}
	}
	return p
}

// put appends the event of an app with a sequence, and its entry, without waiting.
func (p *publishedApps) put(id subjects.AppID, status string, sequence int) {
	p.tb.Helper()
	app := &appv1.App{
		Metadata: &appv1.Meta{Id: &appv1.Identifier{Org: "flyte", Project: id.Project, Domain: id.Domain, Name: id.Name}},
		Spec: &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
			Image: "registry.example.com/" + id.Name + ":1", Env: []*appv1.KeyValuePair{{Key: "TEXT", Value: strings.Repeat("x", 1500)}},
		}}},
		Status: &appv1.Status{CurrentReplicas: 1, CreatedAt: timestamppb.New(time.Now().Add(-time.Hour))},
	}
	event := &appv1.WatchResponse{Event: &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: app}}}
	h := nats.Header{
		subjects.CEID: {fmt.Sprintf("uid/%d/0", sequence)}, subjects.CEType: {subjects.Created.Type()}, subjects.CETime: {time.Now().UTC().Format(time.RFC3339)},
		subjects.HeaderUID: {"uid"}, subjects.HeaderResourceVersion: {strconv.Itoa(sequence)}, subjects.HeaderGeneration: {"1"}, subjects.HeaderAppStatus: {status},
		subjects.CEDataContentType: {subjects.ContentTypeJSON},
	}
	subject, err := p.names.Event(id, subjects.Created)
	if err != nil {
		p.tb.Fatal(err)
	}
	key, err := id.Key()
	if err != nil {
		p.tb.Fatal(err)
	}
	entry := nats.Header{subjects.HeaderEventSequence: {strconv.Itoa(sequence)}}
	for name, values := range h {
		entry[name] = values
	}
	for _, m := range []struct {
		subject string
		header  nats.Header
		encode  func() ([]byte, string, error)
	}{
		{subject, h, func() ([]byte, string, error) { return appv1.Encode(event, subjects.ContentTypeJSON) }},
		{subjects.BucketSubject(subjects.DefaultBucket, key), entry, func() ([]byte, string, error) { return appv1.Encode(app, subjects.ContentTypeJSON) }},
	} {
		data, _, err := m.encode()
		if err != nil {
			p.tb.Fatal(err)
		}
		if _, err := p.js.PublishMsgAsync(&nats.Msg{Subject: m.subject, Header: m.header, Data: data}, jetstream.WithStallWait(suite.Patience)); err != nil {
			p.tb.Fatal(err)
		}
	}
}

// flush waits until everything is stored.
func (p *publishedApps) flush() {
	p.tb.Helper()
	select {
	case <-p.js.PublishAsyncComplete():
	case <-time.After(suite.Patience):
		p.tb.Fatal("the server does not store what is published")
	}
}

// apps makes n of them.
func (p *publishedApps) apps(n int) {
	p.tb.Helper()
	for i := range n {
		p.put(subjects.AppID{Project: fmt.Sprintf("project-%02d", i%20), Domain: "production", Name: fmt.Sprintf("app-%05d", i)}, []string{"ACTIVE", "ACTIVE", "FAILED", "STOPPED"}[i%4], i+1)
	}
	p.flush()
}

func jetStreamServer(tb testing.TB) *server.Server {
	tb.Helper()
	return suite.NATS(tb, &server.Options{JetStream: true, StoreDir: tb.TempDir()})
}

// runWatch runs `appbridge watch` in an environment of its own.
func runWatch(t *testing.T, ctx context.Context, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	isolate(t)
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"watch"}, args...), &out, &errs)
	return code, out.String(), errs.String()
}

func TestWatchExitCodes(t *testing.T) {
	s := jetStreamServer(t)
	p := newPublishedApps(t, s.ClientURL())
	p.put(subjects.AppID{Project: "shop", Domain: "production", Name: "good"}, "ACTIVE", 1)
	p.put(subjects.AppID{Project: "shop", Domain: "production", Name: "bad"}, "FAILED", 2)
	p.put(subjects.AppID{Project: "shop", Domain: "production", Name: "slow\x1b"}, "PENDING", 3)
	p.put(subjects.AppID{Project: "hidden", Domain: "production", Name: "red\x1b[8m"}, "FAILED", 4)
	p.flush()
	for _, test := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"shop --once -o name", exitOK, "shop/production/bad\nshop/production/good\nshop/production/slow\\x1b\n", ""},
		{"shop/production/good --until ACTIVE", exitOK, "shop/production/good  created  status ACTIVE", ""},
		{"shop/production/bad --until ACTIVE", exitAppFailed, "", "appbridge: the app has failed: shop/production/bad is FAILED\n"},
		{"hidden/production/red\x1b[8m --until ACTIVE", exitAppFailed, "", `the app has failed: hidden/production/red\x1b[8m is FAILED` + "\n"},
		{"shop/production/good --once --status FAILED", exitOK, "PROJECT", ""},
		{"shop/production/good --once --status FAILED -o json", exitOK, `"apps":[]`, ""},
		{"shop/production/good --at 1ns --status FAILED", exitOK, "PROJECT", ""},
		{"shop/production/good --once --status FAILLED", exitOK, "PROJECT", "unknown status FAILLED: bridges of this version write ACTIVE, PENDING, FAILED, STOPPED\n"},
		{"shop/production/none --until DELETED", exitOK, "", ""},
		{"shop/production/none --once", exitNoApp, "", "appbridge: no such app: shop/production/none\n"},
		{"shop/production/none --at 1s", exitNoApp, "", "appbridge: no such app: shop/production/none\n"},
		{"--until ACTIVE", exitUsage, "", "until (from --until) needs one app: want project/domain/app"},
		{"a/b/c/d e", exitUsage, "", `"e": unexpected argument`},
		{"a//c", exitUsage, "", `"a//c": not a filter`},
		{"--generation 1", exitUsage, "", "generation (from --generation) needs until"},
		{"--at 1h --since 2h", exitUsage, "", "at (from --at) contradicts since (from --since)"},
		{"--once --events", exitUsage, "", "events (from --events) contradicts once (from --once)"},
		{"--kind created", exitUsage, "", "kind (from --kind) needs events"},
		{"--since start", exitUsage, "", "of logs alone"},
		{"--from nonsense", exitUsage, "", "want the position of a document"},
		{"--at 2999-01-01T00:00:00Z", exitUsage, "", "it is in the future; want a time in the past"},
		{"shop/" + strings.Repeat("x", 4000), exitUsage, "", "want the names of a project, a domain and an app"},
		{"--app " + strings.Repeat("x", 4000), exitUsage, "", "want the names of a project, a domain and an app"},
	} {
		t.Run(test.args, func(t *testing.T) {
			code, stdout, stderr := runWatch(t, t.Context(), append(strings.Fields(test.args), "--nats-url", s.ClientURL())...)
			if code != test.code || !strings.Contains(stdout, test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
				t.Errorf("got exit code %d, %q and %q; want %d, %q and %q", code, stdout, stderr, test.code, test.stdout, test.stderr)
			}
		})
	}
	// Each has to have read before its time is over, however busy the machine is.
	for args, want := range map[string]string{
		"shop/production/good --until ACTIVE --generation 2": ": shop/production/good is ACTIVE",
		"--stream MISSING --once":                            ": STREAM.INFO.MISSING: ",
	} {
		t.Run(args, func(t *testing.T) {
			for timeout := 300 * time.Millisecond; ; timeout *= 4 {
				code, _, stderr := runWatch(t, t.Context(), append(strings.Fields(args), "--timeout", timeout.String(), "--nats-url", s.ClientURL())...)
				if code == exitTimeout && strings.Contains(stderr, "appbridge: timed out after "+timeout.String()+want) {
					return
				}
				if timeout > suite.Patience {
					t.Fatalf("got exit code %d and %q", code, stderr)
				}
			}
		})
	}
	for _, args := range []string{"shop/production/none --until ACTIVE", "--stream MISSING --once", "--stream MISSING --at 1s", "--stream MISSING --since 1h --once"} {
		t.Run("interrupted, "+args, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if code, _, stderr := runWatch(t, ctx, append(strings.Fields(args), "--nats-url", s.ClientURL())...); code != exitInterrupted {
				t.Errorf("got exit code %d and %q", code, stderr)
			}
		})
	}
	t.Run("interrupted while connecting", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if code, _, stderr := runWatch(t, ctx, "shop/production/none", "--until", "ACTIVE", "--log-level", "error", "--nats-url", "nats://"+unusedAddress(t)); code != exitInterrupted || stderr != "" {
			t.Errorf("got exit code %d and %q", code, stderr)
		}
	})
	t.Run("no server", func(t *testing.T) {
		if code, _, stderr := runWatch(t, t.Context(), "--timeout", "300ms", "--nats-url", "nats://"+unusedAddress(t)); code != exitFailure || !strings.Contains(stderr, "did not answer within 300ms") {
			t.Errorf("got exit code %d and %q", code, stderr)
		}
	})
}
