package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/appbridge/appbridge/subjects/appwatch"
)

// schema: the sequence is unique within one history, so that an event cannot be written twice. Another
// history begins where sequences are used again: the stream was put back to an earlier state, or is
// another one. Lost events were stored between since and until.
const schema = `
CREATE TABLE IF NOT EXISTS events (
	history INTEGER NOT NULL, sequence INTEGER NOT NULL, stored INTEGER NOT NULL, stream TEXT NOT NULL,
	project TEXT NOT NULL, domain TEXT NOT NULL, app TEXT NOT NULL,
	kind TEXT NOT NULL, id TEXT NOT NULL, status TEXT NOT NULL, previous TEXT NOT NULL,
	subject TEXT NOT NULL, header TEXT NOT NULL, body BLOB NOT NULL,
	PRIMARY KEY (history, sequence)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_app ON events (project, domain, app, stored, sequence);
CREATE INDEX IF NOT EXISTS events_stored ON events (stored, sequence);
CREATE TABLE IF NOT EXISTS losses (
	history INTEGER NOT NULL, sequence INTEGER NOT NULL, stream TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
	since INTEGER NOT NULL, until INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL, history INTEGER NOT NULL);
INSERT OR IGNORE INTO position VALUES (1, '', 0);`

const (
	// insertEvent skips an event that the stream still has of an earlier history.
	insertEvent = `INSERT INTO events SELECT history, ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13 FROM position
		WHERE NOT EXISTS (SELECT 1 FROM events e WHERE e.stored = ?2 AND e.sequence = ?1 AND e.history < position.history)`
	nextHistory = `UPDATE position SET history = history + 1`
	// insertLoss takes for since the event before the first one that is lost.
	insertLoss = `INSERT INTO losses SELECT history, ?1, ?2, ?3, ?4, coalesce(
		(SELECT stored FROM events WHERE sequence < ?5 ORDER BY history DESC, sequence DESC LIMIT 1), 0), ?6, ?7 FROM position`
	// moveOn fails if another process wrote to the file.
	moveOn = `UPDATE position SET text = ? WHERE text = ?`
)

// batchSize is how many items one transaction takes.
const batchSize = 1000

// errShared reports that another process records into the same file.
var errShared = errors.New("another process records into this file")

// store is the SQLite file.
type store struct{ db *sql.DB }

// open opens the file. With a write-ahead log a commit survives the end of the process; one that a
// power failure takes is read again from the stream, since the position is taken with it.
func open(ctx context.Context, path string) (*store, error) {
	escaped := (&url.URL{Path: path}).EscapedPath()
	db, err := sql.Open("sqlite", "file:"+escaped+"?_pragma=busy_timeout(60000)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, schema); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return &store{db}, nil
}

func (s *store) close() error { return s.db.Close() }

// position is where the file's last event stands in the stream, zero in a new file.
func (s *store) position(ctx context.Context) (at appwatch.Position, err error) {
	var text string
	if err := s.db.QueryRowContext(ctx, `SELECT text FROM position`).Scan(&text); err != nil {
		return at, err
	}
	return appwatch.ParsePosition(text)
}

// writeAll writes items in batches until there are no more.
func (s *store) writeAll(ctx context.Context, from appwatch.Position, items <-chan appwatch.Item) error {
	ctx = context.WithoutCancel(ctx) // what has arrived is written
	for item := range items {
		batch := []appwatch.Item{item}
		for more := true; more && len(batch) < batchSize; {
			select {
			case item, more = <-items:
				if more {
					batch = append(batch, item)
				}
			default:
				more = false
			}
		}
		to, err := s.write(ctx, from, batch)
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}

// write commits rows and the position behind them in one transaction: both are there, or neither.
func (s *store) write(ctx context.Context, from appwatch.Position, batch []appwatch.Item) (to appwatch.Position, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return from, err
	}
	defer func() { _ = tx.Rollback() }() // without effect after the commit
	event, err := tx.PrepareContext(ctx, insertEvent)
	if err != nil {
		return from, err
	}
	to = from
	for _, it := range batch {
		switch it.Type {
		case appwatch.Event:
			var header []byte
			if header, err = json.Marshal(it.Header()); err == nil {
				_, err = event.ExecContext(ctx, it.Sequence, it.Stored().UnixNano(), it.Position.StreamID, it.ID.Project, it.ID.Domain, it.ID.Name,
					string(it.Kind), it.MessageID(), it.Status(), it.PreviousStatus(), it.Subject(), string(header), it.Data())
			}
		case appwatch.Loss:
			err = writeLoss(ctx, tx, to, it)
		}
		if err != nil {
			return from, fmt.Errorf("write %s %d: %w", it.Type, it.Sequence, err)
		}
		if !it.Position.IsZero() {
			to = it.Position
		}
	}
	result, err := tx.ExecContext(ctx, moveOn, to.String(), from.String())
	if err != nil {
		return from, err
	}
	if n, err := result.RowsAffected(); err != nil || n != 1 {
		return from, errors.Join(errShared, err)
	}
	return to, tx.Commit()
}

// writeLoss writes a loss behind a position. first is the first sequence that may be lost and was not
// read: without a range, and where sequences are used again, the one behind the position.
func writeLoss(ctx context.Context, tx *sql.Tx, behind appwatch.Position, it appwatch.Item) error {
	first := cmp.Or(it.Lost.From, behind.Sequence+1)
	if errors.Is(it.Reason, appwatch.ErrRolledBack) || errors.Is(it.Reason, appwatch.ErrOtherStream) {
		first = behind.Sequence + 1
		if _, err := tx.ExecContext(ctx, nextHistory); err != nil {
			return err
		}
	}
	until := it.Stored() // of a notice
	if until.IsZero() {
		until = time.Now()
	}
	_, err := tx.ExecContext(ctx, insertLoss, it.Position.Sequence, it.Position.StreamID, it.Lost.From, it.Lost.To, first, until.UnixNano(), it.Reason.Error())
	return err
}
