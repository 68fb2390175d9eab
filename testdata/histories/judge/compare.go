package judge

import (
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/histories/lines"
	"github.com/appbridge/appbridge/testdata/histories/model"
)

// compare checks what a line says of an event: as an event, or as a state that reflects it.
func (j *Judge) compare(l lines.Line, m *model.Message, state bool) {
	e := m.Event
	if id := l.AppID(); id != e.ID {
		j.problem(Content, "%s is reported for %s", name(m), id)
		return
	}
	if !state && !j.want.event(e) {
		j.problem(Content, "%s was not asked for", name(m))
	}
	truncated := e.Truncated
	if state {
		truncated = m.Shown()
	}
	previous := l.PreviousStatus
	if l.Skipped > 0 || state && j.reason != "" {
		previous = e.Previous // of the first of several events, or of what was known before the restart
	}
	for _, field := range []struct {
		name      string
		got, want any
	}{
		{"kind", l.Kind, e.Kind},
		{"id", l.ID, e.MessageID},
		{"uid", l.UID, e.UID},
		{"resourceVersion", l.ResourceVersion, e.Version},
		{"time", l.Time, e.Time},
		{"status", l.Status, e.Status},
		{"previousStatus", previous, e.Previous},
		{"previousSequence", l.PreviousSequence, e.PreviousSequence},
		{"merged", l.Merged, e.Merged},
		{"synthesized", l.Synthesized, e.Synthesized},
		{"finalStateUnknown", l.FinalStateUnknown, e.FinalStateUnknown},
	} {
		if field.got != field.want {
			j.problem(Content, "%s: %s is %v, want %v", name(m), field.name, field.got, field.want)
		}
	}
	if !slices.Equal(l.Truncated, truncated) {
		j.problem(Content, "%s: truncated is %q, want %q", name(m), l.Truncated, truncated)
	}
	if j.want.HeadersOnly {
		return
	}
	app := e.App
	switch {
	case state && e.Kind == subjects.Deleted:
		app = nil
	case state:
		app = model.Without(app, truncated)
	}
	j.same(m, "object", l.Object, app)
	if !state && e.Kind == subjects.Updated {
		j.same(m, "old", l.Old, e.Old)
	}
}

// same compares an App of a line with the one of the message.
func (j *Judge) same(m *model.Message, field string, text json.RawMessage, want *appv1.App) {
	got, err := decode(text)
	switch {
	case err != nil:
		j.problem(Content, "%s: %s: %v", name(m), field, err)
	case !proto.Equal(got, want):
		j.problem(Content, "%s: %s is %s, want %s", name(m), field, brief(got), brief(want))
	}
}

func decode(text json.RawMessage) (*appv1.App, error) {
	if len(text) == 0 {
		return nil, nil
	}
	app := &appv1.App{}
	return app, protojson.Unmarshal(text, app)
}

func brief(app *appv1.App) string {
	if app == nil {
		return "missing"
	}
	return fmt.Sprintf("revision %d with spec %t, status %t", app.GetMetadata().GetRevision(), app.GetSpec() != nil, app.GetStatus() != nil)
}
