package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Stored events that have the same time are in the order of their sequences.
const (
	lastOf = `SELECT sequence, stored, kind, status, header, body FROM events
		WHERE project = ? AND domain = ? AND app = ? AND stored <= ? ORDER BY stored DESC, sequence DESC LIMIT 1`
	// lossOf are the losses of events that were stored between two instants. They were stored before
	// the next event that was read, too.
	lossOf = `SELECT first, last, since, min(until, coalesce((SELECT stored FROM events e
			WHERE e.history = losses.history AND e.sequence > losses.sequence ORDER BY e.sequence LIMIT 1), until)) AS before, reason
		FROM losses WHERE before > ? AND since <= ? ORDER BY since`
	between = `SELECT stored, sequence, project, domain, app, kind, previous, status FROM events
		WHERE stored >= ? AND stored < ? ORDER BY stored, sequence`
)

// at prints what an app was at an instant: its last event that the server had stored by then.
func (s *store) at(ctx context.Context, out io.Writer, app string, when time.Time) error {
	parts := strings.SplitN(app, "/", 3)
	if len(parts) != 3 {
		return fmt.Errorf("app %q: want PROJECT/DOMAIN/APP", app)
	}
	var kind, status, header string
	var sequence uint64
	var stored int64
	var body []byte
	err := s.db.QueryRowContext(ctx, lastOf, parts[0], parts[1], parts[2], when.UnixNano()).Scan(&sequence, &stored, &kind, &status, &header, &body)
	unknown := errors.Is(err, sql.ErrNoRows)
	switch {
	case unknown:
		_, err = fmt.Fprintf(out, "%q did not exist, or not yet in this file\n", app)
	case err != nil:
	case kind == string(subjects.Deleted):
		_, err = fmt.Fprintf(out, "%q was deleted at %s (event %d)\n", app, instant(stored), sequence)
	default:
		_, err = fmt.Fprintf(out, "%q was %s since %s (event %d)\n", app, status, instant(stored), sequence)
	}
	if err != nil {
		return err
	}
	if err := s.losses(ctx, out, stored, when.UnixNano()); err != nil || unknown {
		return err
	}
	return printState(out, header, body)
}

// instant is a time of the server as text.
func instant(nanoseconds int64) string {
	return time.Unix(0, nanoseconds).UTC().Format(time.RFC3339Nano)
}

// losses prints which losses make an answer uncertain: an event of the app may be missing between its
// last one and the instant.
func (s *store) losses(ctx context.Context, out io.Writer, stored, when int64) error {
	rows, err := s.db.QueryContext(ctx, lossOf, stored, when)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var first, last uint64
		var since, before int64
		var reason string
		if err := rows.Scan(&first, &last, &since, &before, &reason); err != nil {
			return err
		}
		lost := "events"
		if first > 0 {
			lost = fmt.Sprintf("events %d to %d", first, last)
		}
		if _, err := fmt.Fprintf(out, "# uncertain: %s from %s to %s: %q\n", lost, instant(since), instant(before), reason); err != nil {
			return err
		}
	}
	return rows.Err()
}

// printState prints the App of an event as protobuf JSON.
func printState(out io.Writer, header string, body []byte) error {
	var h nats.Header
	if err := json.Unmarshal([]byte(header), &h); err != nil {
		return err
	}
	var event appv1.WatchResponse
	if err := appv1.Decode(body, h.Get(subjects.CEDataContentType), &event); err != nil {
		return err
	}
	app := event.GetCreateEvent().GetApp()
	if update := event.GetUpdateEvent(); update != nil {
		app = update.GetUpdatedApp()
	} else if gone := event.GetDeleteEvent(); gone != nil {
		app = gone.GetApp()
	}
	_, err := fmt.Fprintln(out, protojson.Format(app))
	return err
}

// replay prints the events that the server stored in a span of time, in order.
func (s *store) replay(ctx context.Context, out io.Writer, from, to time.Time) error {
	rows, err := s.db.QueryContext(ctx, between, from.UnixNano(), to.UnixNano())
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var stored int64
		var sequence uint64
		var id subjects.AppID
		var kind, previous, status string
		if err := rows.Scan(&stored, &sequence, &id.Project, &id.Domain, &id.Name, &kind, &previous, &status); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(out, "%s %d %q %s %s -> %s\n", instant(stored), sequence, id, kind, previous, status); err != nil {
			return err
		}
	}
	return rows.Err()
}
