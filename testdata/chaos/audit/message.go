package audit

import (
	"bytes"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// event is a message of the stream that is told as an event of an app.
type event struct {
	*Message
	id       subjects.AppID
	kind     subjects.EventKind
	repeated uint64 // the sequence of an earlier message with the same id, 0 if none
	lost     bool   // a rollback took it

	app, old *appv1.App // nil until decode
	full     *appv1.App // app with what was left out of it; nil while that is not known
	raw      []byte     // app as it stands in the message, if that is known
}

func (e *event) get(name string) string { return e.Header.Get(name) }
func (e *event) flag(name string) bool  { return e.get(name) == subjects.FlagTrue }
func (e *event) uid() string            { return e.get(subjects.HeaderUID) }
func (e *event) version() string        { return e.get(subjects.HeaderResourceVersion) }

// String says which event it is.
func (e *event) String() string {
	at := e.version()
	if e.kind == subjects.Deleted {
		at = e.get(subjects.HeaderDeletedResourceVersion)
	}
	return fmt.Sprintf("%s %s@%s", e.kind, e.uid(), at)
}

// merged is how many updates the event says it stands for beside its own.
func (e *event) merged() int {
	n, err := strconv.Atoi(e.get(subjects.HeaderMergedUpdates))
	if err != nil || n < 0 || e.kind != subjects.Updated {
		return 0
	}
	return n
}

// key is the state that the event tells; ok is false for a delete that does
// not say which one.
func (e *event) key() (key stateKey, ok bool) {
	if e.kind != subjects.Deleted {
		return stateKey{e.uid(), e.version(), false}, true
	}
	version := e.get(subjects.HeaderDeletedResourceVersion)
	return stateKey{e.uid(), version, true}, version != ""
}

// decode reads the payload. before is the event before of the same app, nil
// for none: what stands there does not have to be read again.
func (e *event) decode(before *event) error {
	if e.decodeAfter(before) {
		return nil
	}
	w := &appv1.WatchResponse{}
	if err := decode(e.Data, e.get(subjects.CEDataContentType), w); err != nil {
		return fmt.Errorf("decode the event: %w", err)
	}
	switch e.kind {
	case subjects.Created:
		e.app = w.GetCreateEvent().GetApp()
	case subjects.Updated:
		e.app, e.old = w.GetUpdateEvent().GetUpdatedApp(), w.GetUpdateEvent().GetOldApp()
	case subjects.Deleted:
		e.app = w.GetDeleteEvent().GetApp()
	}
	if e.app == nil {
		return fmt.Errorf("the payload is no %s event", e.kind)
	}
	return nil
}

// The frame of an App in an event of each kind, in JSON.
const (
	createdStart = `{"createEvent":{"app":`
	updatedStart = `{"updateEvent":{"updatedApp":`
	updatedOld   = `,"oldApp":`
	frameEnd     = `}}`
)

// decodeAfter reads a JSON payload in which old_app, if there is one, is byte
// by byte the App of the event before. It is false for any other.
func (e *event) decodeAfter(before *event) bool {
	if e.get(subjects.CEDataContentType) != subjects.ContentTypeJSON {
		return false
	}
	raw, framed := bytes.CutSuffix(e.Data, []byte(frameEnd))
	if !framed {
		return false
	}
	var old *appv1.App
	switch e.kind {
	case subjects.Created:
		raw, framed = bytes.CutPrefix(raw, []byte(createdStart))
	case subjects.Updated:
		if before == nil || before.raw == nil {
			return false
		}
		old = before.app
		if raw, framed = bytes.CutSuffix(raw, before.raw); framed {
			if raw, framed = bytes.CutSuffix(raw, []byte(updatedOld)); framed {
				raw, framed = bytes.CutPrefix(raw, []byte(updatedStart))
			}
		}
	default:
		return false
	}
	app := &appv1.App{}
	if !framed || protojson.Unmarshal(raw, app) != nil {
		return false
	}
	e.app, e.old, e.raw = app, old, raw
	return true
}

func decode(data []byte, form string, m proto.Message) error {
	switch form {
	case subjects.ContentTypeJSON:
		return protojson.Unmarshal(data, m)
	case subjects.ContentTypeProtobuf:
		return proto.Unmarshal(data, m)
	default:
		return fmt.Errorf("content type %q", form)
	}
}

// sameApp compares two Apps as far as the form that one of them came in can
// tell: JSON keeps no unknown fields.
func sameApp(a, b *appv1.App, form string) bool {
	if a == b || proto.Equal(a, b) {
		return true
	}
	if form != subjects.ContentTypeJSON || a == nil || b == nil || a.GetStatus().GetCurrentReplicas() != b.GetStatus().GetCurrentReplicas() {
		return false
	}
	return proto.Equal(throughJSON(a), throughJSON(b))
}

func throughJSON(app *appv1.App) *appv1.App {
	data, err := protojson.Marshal(app)
	if err != nil {
		return app
	}
	back := &appv1.App{}
	if err := protojson.Unmarshal(data, back); err != nil {
		return app
	}
	return back
}
