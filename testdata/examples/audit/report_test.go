package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func recordWith(t *testing.T, js jetstream.JetStream, file *store, opts appwatch.Options, until func() error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- record(ctx, js, file, opts) }()
	defer stop()
	suite.Eventually(t, suite.Patience, "the auditor writes", func() error {
		select {
		case err := <-done:
			return fmt.Errorf("%w: it ended: %w", suite.ErrFatal, err)
		default:
			return until()
		}
	})
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What an app was at an instant, before, between and after its events, and where a loss makes that
// uncertain.
func TestReports(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newWriter(t, jetStream(t))
	x := subjects.AppID{Project: "shop", Domain: "production", Name: "x"}
	sequences := []uint64{}
	for _, status := range []string{"PENDING", "ACTIVE", ""} {
		n, err := w.event(ctx, x, status)
		if err != nil {
			t.Fatal(err)
		}
		sequences = append(sequences, n)
	}
	from, to, err := w.lose(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.event(ctx, x, "FAILED"); err != nil {
		t.Fatal(err)
	}
	file, err := open(ctx, filepath.Join(t.TempDir(), "apps.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.close() }()
	recordUntil(t, w.js, file, 4)

	events := content(t, w.js)
	at := func(n int) time.Time { return time.Unix(0, events[n].stored) }
	lost := fmt.Sprintf("# uncertain: events %d to %d from ", from, to)
	for _, c := range []struct {
		name      string
		when      time.Time
		want, not string
	}{
		{"before", at(0).Add(-1), "did not exist", "PENDING"},
		{"created", at(0), "was PENDING", "uncertain"},
		{"just before the next", at(1).Add(-1), "was PENDING", "uncertain"},
		{"updated", at(1), "was ACTIVE", "uncertain"},
		{"its state", at(1), `"subdomain":`, "uncertain"},
		{"deleted", at(2), fmt.Sprintf("was deleted at %s (event %d)", at(2).UTC().Format(time.RFC3339Nano), sequences[2]), "ACTIVE since"},
		{"a loss behind it", at(2), lost, "ACTIVE since"},
		{"made again", at(3).Add(time.Hour), "was FAILED", "uncertain"},
	} {
		var out bytes.Buffer
		if err := file.at(ctx, &out, "shop/production/x", c.when); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
			t.Errorf("%s: got %s, want %q and no %q", c.name, got, c.want, c.not)
		}
	}

	var out bytes.Buffer
	if err := file.replay(ctx, &out, at(1), at(3)); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 2 || !strings.HasSuffix(lines[0], ` "shop/production/x" updated PENDING -> ACTIVE`) || !strings.HasSuffix(lines[1], ` "shop/production/x" deleted ACTIVE -> `) {
		t.Errorf("got %q", lines)
	}
}
