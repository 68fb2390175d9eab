// Package lines is the form in which a reader reports what it received: one JSON object per line.
// Its README describes it for readers in any language.
package lines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/appbridge/appbridge/subjects"
)

// Type is the kind of a line.
type Type string

// The types of lines. A judge skips those that it does not know.
const (
	State   Type = "state"   // one app of a snapshot
	Mark    Type = "mark"    // the snapshot is complete and exact at Sequence
	Event   Type = "event"   // one event
	Loss    Type = "loss"    // events of a range of sequences are lost
	Restart Type = "restart" // a snapshot begins again: states and a mark follow
)

// The reasons of a Loss and a Restart.
const (
	Notice      = "notice"       // the stream reports lost events, which may have been delivered
	Removed     = "removed"      // events that were not delivered are gone
	RolledBack  = "rolled-back"  // the stream came back with less than was read of it
	OtherStream = "other-stream" // the stream is another one than that of the position
)

// Line is one line. Absent fields are empty, false or 0.
type Line struct {
	Type Type `json:"type"`
	// Position is where a reader goes on from, behind it, once this line is processed. Its form is
	// the reader's own. Empty on a State and a Restart: the one before stays.
	Position string `json:"position,omitempty"`
	Reason   string `json:"reason,omitempty"` // of a Loss and a Restart
	// Owed, on a Mark: the bucket may be behind the beginning of the stream, or a copy of it behind its
	// origin. A Restart follows if it was.
	Owed bool   `json:"owed,omitempty"`
	From uint64 `json:"from,omitempty"` // of a Loss: the first sequence
	To   uint64 `json:"to,omitempty"`   // of a Loss: the last sequence

	Project           string             `json:"project,omitempty"`
	Domain            string             `json:"domain,omitempty"`
	App               string             `json:"app,omitempty"`
	Kind              subjects.EventKind `json:"kind,omitempty"`
	Sequence          uint64             `json:"sequence,omitempty"` // in the stream of origin
	ID                string             `json:"id,omitempty"`       // ce-id
	UID               string             `json:"uid,omitempty"`
	ResourceVersion   string             `json:"resourceVersion,omitempty"`
	Time              string             `json:"time,omitempty"` // ce-time
	Status            string             `json:"status,omitempty"`
	PreviousStatus    string             `json:"previousStatus,omitempty"`
	PreviousSequence  uint64             `json:"previousSequence,omitempty"`
	Merged            int                `json:"merged,omitempty"`
	Synthesized       bool               `json:"synthesized,omitempty"`
	FinalStateUnknown bool               `json:"finalStateUnknown,omitempty"`
	Truncated         []string           `json:"truncated,omitempty"`
	Skipped           int                `json:"skipped,omitempty"` // of the newest states: events that it stands for
	Changed           bool               `json:"changed,omitempty"` // of a state after a restart
	Object            json.RawMessage    `json:"object,omitempty"`  // the App as protobuf JSON
	Old               json.RawMessage    `json:"old,omitempty"`     // of an update: the App before
}

// AppID is the app that a line is about.
func (l Line) AppID() subjects.AppID {
	return subjects.AppID{Project: l.Project, Domain: l.Domain, Name: l.App}
}

// Write writes one line, in one call of w.
func Write(w io.Writer, l Line) error {
	data, err := json.Marshal(l)
	if err != nil {
		return fmt.Errorf("encode a line: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Read hands every complete line to take until r ends or take returns an error. What follows the
// last line feed was cut off and does not count.
func Read(r io.Reader, take func(Line) error) error {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if text = bytes.TrimSpace(text); len(text) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			return fmt.Errorf("line %.200q: %w", text, err)
		}
		if err := take(l); err != nil {
			return err
		}
	}
}
