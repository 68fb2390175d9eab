package model

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Truncate drops fields of an event that did not fit into its message.
func (e *Event) Truncate(fields []string) {
	for _, field := range fields {
		if field == subjects.TruncatedOldApp {
			e.Old = nil
		}
	}
	e.App = Without(e.App, fields)
	e.Truncated = fields
}

// Without is an App without the fields that Flyte-Truncated names.
func Without(app *appv1.App, fields []string) *appv1.App {
	if slices.Contains(fields, subjects.TruncatedSpec) {
		app = proto.CloneOf(app)
		app.Spec = nil
	}
	if slices.Contains(fields, subjects.TruncatedStatus) {
		app = proto.CloneOf(app)
		app.Status = nil
	}
	return app
}

// Shown are the fields that the bucket's entry of the event lacks.
func (m *Message) Shown() []string {
	fields := slices.Clone(m.Event.Truncated)
	for _, field := range m.Entry {
		if !slices.Contains(fields, field) {
			fields = append(fields, field)
		}
	}
	return fields
}
