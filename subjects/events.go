package subjects

import (
	"fmt"
	"strings"
)

// EventKind is the kind of an event. It is the last token of its subject.
type EventKind string

// The kinds of event.
const (
	Created EventKind = "created" // the first event of an app, and the first after a delete
	Updated EventKind = "updated" // a change of an existing app
	Deleted EventKind = "deleted" // the end of an app: deleted, or no longer managed by Flyte
)

const eventsBranch = ".events."

// Type is the CloudEvents type of the kind, "org.flyte.app.created.v1" for Created.
func (k EventKind) Type() string { return "org.flyte.app." + string(k) + ".v1" }

func (k EventKind) validate() error { return oneOf("event kind", k, Created, Updated, Deleted) }

// Events is the subject of the event stream, "<prefix>.events.>": every event of every app.
func (s Subjects) Events() string { return s.prefix + eventsBranch + ">" }

// Event is the subject of one event, "<prefix>.events.<project>.<domain>.<app>.<kind>".
func (s Subjects) Event(id AppID, kind EventKind) (string, error) {
	if err := kind.validate(); err != nil {
		return "", fmt.Errorf("event subject: %w", err)
	}
	key, err := id.Key()
	if err != nil {
		return "", fmt.Errorf("event subject: %w", err)
	}
	return s.prefix + eventsBranch + key + "." + string(kind), nil
}

// EventFilter matches all events of one app, "<prefix>.events.<project>.<domain>.<app>.*".
func (s Subjects) EventFilter(id AppID) (string, error) {
	key, err := id.Key()
	if err != nil {
		return "", fmt.Errorf("event filter: %w", err)
	}
	return s.prefix + eventsBranch + key + ".*", nil
}

// ParseEvent is the inverse of Event.
func (s Subjects) ParseEvent(subject string) (AppID, EventKind, error) {
	rest, err := s.cut(subject, eventsBranch)
	dot := strings.LastIndexByte(rest, '.')
	if err == nil && dot < 0 {
		err = fmt.Errorf("%w: no event kind", ErrMalformed)
	}
	kind := EventKind(rest[dot+1:])
	if err == nil {
		err = kind.validate()
	}
	var id AppID
	if err == nil {
		id, err = ParseKey(rest[:max(dot, 0)])
	}
	if err != nil {
		return AppID{}, "", fmt.Errorf("parse event subject %s: %w", quote(subject), err)
	}
	return id, kind, nil
}
