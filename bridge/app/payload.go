package app

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/appbridge/appbridge/subjects"
)

// layout is where a WatchResponse has the Apps of a kind of event.
type layout struct {
	number     protowire.Number // of the event in a WatchResponse
	event, app string           // their names in JSON
}

var layouts = map[subjects.EventKind]layout{
	subjects.Created: {1, "createEvent", "app"},
	subjects.Updated: {2, "updateEvent", "updatedApp"},
	subjects.Deleted: {3, "deleteEvent", "app"},
}

// The fields of an event.
const (
	appNumber    = 1
	oldAppNumber = 2
)

// payload splices the WatchResponse of an event from its Apps, which are exact and of one content
// type: the same bytes as encoding the whole message. Either may be missing.
func payload(kind subjects.EventKind, app, old Encoded) []byte {
	at := layouts[kind]
	if app.form == subjects.ContentTypeJSON {
		b := make([]byte, 0, app.size()+old.size()+len(`{"":{"":,"oldApp":}}`)+len(at.event)+len(at.app))
		b = append(append(append(b, `{"`...), at.event...), `":{"`...)
		b = app.appendTo(append(append(b, at.app...), `":`...))
		if !old.IsZero() {
			b = old.appendTo(append(b, `,"oldApp":`...))
		}
		return append(b, "}}"...)
	}
	fields := []struct {
		number protowire.Number
		app    Encoded
	}{{appNumber, app}, {oldAppNumber, old}}
	length := 0
	for _, f := range fields {
		if !f.app.IsZero() {
			length += protowire.SizeTag(f.number) + protowire.SizeBytes(f.app.size())
		}
	}
	b := make([]byte, 0, protowire.SizeTag(at.number)+protowire.SizeBytes(length))
	b = protowire.AppendTag(b, at.number, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(length))
	for _, f := range fields {
		if !f.app.IsZero() {
			b = protowire.AppendTag(b, f.number, protowire.BytesType)
			b = f.app.appendTo(protowire.AppendVarint(b, uint64(f.app.size())))
		}
	}
	return b
}

// payload encodes an event in the configured content type, or in binary form if one of its Apps has
// no JSON form.
func (e *Encoder) payload(kind subjects.EventKind, app, old Encoded) (data []byte, form string, err error) {
	for _, form := range []string{e.Form, subjects.ContentTypeProtobuf} {
		now, err := app.As(form)
		if err != nil {
			return nil, "", err
		}
		before, err := old.As(form)
		if err != nil {
			return nil, "", err
		}
		if now.form == form && (before.IsZero() || before.form == form) {
			return payload(kind, now, before), form, nil
		}
	}
	return nil, "", errNoForm
}
