package main

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

var (
	storefront = subjects.AppID{Project: "shop", Domain: "production", Name: "storefront"}
	checkout   = subjects.AppID{Project: "shop", Domain: "production", Name: "check/out"}
)

// box is a server that can be put back to an earlier copy of its store.
type box struct {
	t    *testing.T
	dir  string
	port int
	srv  *server.Server
	w    *writer
}

func newBox(t *testing.T) *box {
	t.Helper()
	b := &box{t: t, dir: t.TempDir(), port: suite.FreePort(t)}
	b.serve()
	b.w = newWriter(t, b.srv.ClientURL())
	return b
}

func (b *box) serve() {
	b.t.Helper()
	b.srv = suite.NATS(b.t, &server.Options{Port: b.port, JetStream: true, StoreDir: filepath.Join(b.dir, "store")})
}

// connected waits for the writer's connection, or its end: what is sent in between is lost.
func (b *box) connected(want bool) {
	b.t.Helper()
	suite.Eventually(b.t, suite.Patience, "the writer's connection changes", func() error {
		if b.w.js.Conn().IsConnected() != want {
			return errNotYet
		}
		return nil
	})
}

// restart runs the server with the store that swap leaves.
func (b *box) restart(swap func()) {
	b.t.Helper()
	b.srv.Shutdown()
	b.srv.WaitForShutdown()
	b.connected(false)
	swap()
	b.serve()
	b.connected(true)
}

// replace makes a folder a copy of another one.
func (b *box) replace(to, from string) {
	b.t.Helper()
	to, from = filepath.Join(b.dir, to), filepath.Join(b.dir, from)
	for {
		err := os.RemoveAll(to)
		if err == nil {
			err = os.CopyFS(to, os.DirFS(from))
		}
		if err == nil {
			return
		}
		if !errors.Is(err, fs.ErrNotExist) { // a stopped server may still remove files
			b.t.Fatal(err)
		}
	}
}

// events appends events of the storefront, and one of another app behind them.
func (b *box) events(statuses ...string) {
	b.t.Helper()
	for _, status := range statuses {
		b.event(storefront, status)
	}
	b.event(checkout, "ACTIVE")
}

func (b *box) event(id subjects.AppID, status string) {
	b.t.Helper()
	suite.Eventually(b.t, suite.Patience, "the server stores an event", func() error {
		_, err := b.w.event(b.t.Context(), id, status)
		return err
	})
}

// with adds the events that are in the stream and not in the list.
func (b *box) with(events []row) []row {
	b.t.Helper()
	for _, e := range content(b.t, b.w.js) {
		if !slices.ContainsFunc(events, func(known row) bool { return known.stored == e.stored && known.sequence == e.sequence }) {
			events = append(events, e)
		}
	}
	return events
}

// A stream that is put back to an earlier copy, or made again under its name, uses sequences again. The
// auditor goes on, with every event of both histories, none of them twice, and a row for the loss. It
// ends neither at once nor when it is started again.
func TestSequencesAreUsedAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		again func(b *box) // another history
		runs  bool         // the auditor runs meanwhile
		few   bool         // the other history ends before the auditor's position, at first
		want  error
	}{
		{name: "put back and filled again", again: func(b *box) { b.back() }, want: appwatch.ErrRolledBack},
		{name: "put back and filled a little", again: func(b *box) { b.back(); b.events("PENDING") }, few: true, want: appwatch.ErrRolledBack},
		{name: "put back while the auditor runs", again: func(b *box) { b.back() }, runs: true, want: appwatch.ErrRolledBack},
		{name: "made again", again: func(b *box) { b.again("another") }, want: appwatch.ErrOtherStream},
		{name: "made again while the auditor runs", again: func(b *box) { b.again("another") }, runs: true, want: appwatch.ErrOtherStream},
		{name: "made again with its id", again: func(b *box) { b.again("pX2mVQkQGm3rXo0dJq8b1w") }, want: appwatch.ErrRolledBack},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			file, err := open(t.Context(), filepath.Join(t.TempDir(), "apps.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.close() }()
			b.events("PENDING", "ACTIVE")
			b.save()
			b.events("FAILED", "ACTIVE", "FAILED")
			events := b.with(nil)
			old := len(events)
			grow := func() {
				b.events("PENDING", "ACTIVE", "PENDING", "ACTIVE", "PENDING", "ACTIVE", "PENDING", "STOPPED")
				events = b.with(events)
			}
			seen := new(atomic.Bool) // that the stream ends before the position
			opts := appwatch.Options{OnRetry: func(err error) {
				if errors.Is(err, appwatch.ErrRolledBack) {
					seen.Store(true)
				}
			}}
			if !c.runs {
				recordWith(t, b.w.js, file, opts, func() error { return complete(t, file, events) })
				c.again(b)
				if !c.few {
					grow()
				}
			}
			turned, grown := !c.runs, !c.runs && !c.few
			recordWith(t, b.w.js, file, opts, func() error {
				if !turned {
					if err := complete(t, file, events); err != nil {
						return err
					}
					c.again(b)
					turned = true
				}
				if !grown {
					if errors.Is(c.want, appwatch.ErrRolledBack) && !seen.Load() {
						return errNotYet
					}
					grow()
					grown = true
				}
				return complete(t, file, events)
			})
			for range 2 { // started again
				b.events("ACTIVE")
				events = b.with(events)
				recordWith(t, b.w.js, file, appwatch.Options{}, func() error { return complete(t, file, events) })
			}
			compare(t, file, events)
			if n := count(t, file, "losses"); n != 1 {
				t.Errorf("%d losses, want 1", n)
			}
			b.reports(file, events, old, c.want)
		})
	}
}

// reports checks what is reported of the time before, in and behind the loss.
func (b *box) reports(file *store, events []row, old int, loss error) {
	b.t.Helper()
	at := func(i int) time.Time { return time.Unix(0, events[i].stored) }
	last := len(events) - 1
	for _, q := range []struct {
		name      string
		app       subjects.AppID
		when      time.Time
		want, not string
	}{
		{"long before", storefront, at(0), "was PENDING", "uncertain"},
		{"the last one before", storefront, at(old).Add(-1), "was FAILED", "was ACTIVE"},
		{"it is uncertain", storefront, at(old).Add(-1), loss.Error(), "was ACTIVE"},
		{"of an app without events", subjects.AppID{Project: "shop", Domain: "production", Name: "x"}, at(old).Add(-1), loss.Error(), "was ACTIVE"},
		{"behind it", storefront, at(last), "was ACTIVE", "uncertain"},
	} {
		var out bytes.Buffer
		if err := file.at(b.t.Context(), &out, q.app.String(), q.when); err != nil {
			b.t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, q.want) || strings.Contains(got, q.not) {
			b.t.Errorf("%s: got %s, want %q and no %q", q.name, got, q.want, q.not)
		}
	}
	var out bytes.Buffer
	if err := file.replay(b.t.Context(), &out, at(0), at(last).Add(1)); err != nil {
		b.t.Fatal(err)
	}
	if got := strings.Count(out.String(), "\n"); got != len(events) {
		b.t.Errorf("%d lines, want %d:\n%s", got, len(events), out.String())
	}
}

var errNotYet = errors.New("not yet")

// complete reports whether the file has as many events as wanted.
func complete(t *testing.T, file *store, events []row) error {
	if n := rows(t, file); n < len(events) {
		return errNotYet
	}
	return nil
}

// save keeps a copy of the store, and what the writer knows.
func (b *box) save() {
	b.t.Helper()
	b.restart(func() { b.replace("copy", "store") })
	b.w.saved = &writer{last: maps.Clone(b.w.last), status: maps.Clone(b.w.status)}
}

// back puts the store back to the copy.
func (b *box) back() {
	b.t.Helper()
	b.restart(func() { b.replace("store", "copy") })
	b.w.last, b.w.status = b.w.saved.last, b.w.saved.status
}

// again deletes the stream and makes it again, with an id.
func (b *box) again(id string) {
	b.t.Helper()
	if err := b.w.js.DeleteStream(b.t.Context(), subjects.DefaultStream); err != nil {
		b.t.Fatal(err)
	}
	cfg := streamConfig(b.w.names)
	cfg.Metadata[subjects.MetadataStreamID] = id
	if _, err := b.w.js.CreateStream(b.t.Context(), cfg); err != nil {
		b.t.Fatal(err)
	}
	clear(b.w.last)
	clear(b.w.status)
}

// Any path is a file's, and only record makes one.
func TestFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"apps.db", "50%.db", "what?.db", "a#b%20c.db", "a&b=c d.db"} {
		path := filepath.Join(t.TempDir(), name)
		file, err := open(t.Context(), path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := file.close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
	binary, missing := program(t), filepath.Join(t.TempDir(), "app.db")
	for _, args := range [][]string{{"at", "shop/production/x", "2026-11-23T10:00:00Z"}, {"replay", "2026-11-23T10:00:00Z", "2026-11-23T12:00:00Z"}} {
		out, err := exec.CommandContext(t.Context(), binary, append([]string{"--file", missing}, args...)...).CombinedOutput()
		if err == nil || !strings.Contains(string(out), missing) {
			t.Errorf("%s of a missing file: got %v, %s", args[0], err, out)
		}
	}
	if _, err := os.Stat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the missing file is there: %v", err)
	}
}
