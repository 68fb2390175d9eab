package audit

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// bucket checks the app's entry against its last event. That event is held
// against the cluster elsewhere, so that a state that is missing in both is one
// problem.
func (w *walk) bucket(entry *Message, known bool) {
	wrong := func(format string, args ...any) { w.drift(nil, "the bucket: "+format, args...) }
	switch {
	case entry == nil && w.last == nil:
		return
	case entry == nil:
		wrong("no entry, the last event is %s", w.lastText())
		return
	case !known:
		wrong("an entry for what the cluster never had")
		return
	case w.last == nil:
		wrong("an entry for an app without an event")
		return
	}
	sequence := w.last.Sequence
	if w.repeat != 0 {
		sequence = w.repeat
	}
	if got, want := entry.Header.Get(subjects.HeaderEventSequence), strconv.FormatUint(sequence, 10); got != want {
		wrong("it reflects sequence %q, the last event is %s", got, w.lastText())
		return
	}
	for _, name := range sharedHeaders(entry.Header, w.last.Header) {
		switch got, want := entry.Header[name], w.last.Header[name]; {
		case slices.Equal(got, want):
		case name == subjects.HeaderTruncated && w.last.kind != subjects.Deleted: // the App shows whether it is true
		case name == subjects.CEDataContentType && w.last.kind != subjects.Deleted && len(got) == 1: // an encoding of its own
		default:
			wrong("header %s is %q, the event's %q (%s)", name, got, want, w.lastText())
		}
	}
	operation, marked := entry.Header[subjects.HeaderKVOperation]
	if w.last.kind == subjects.Deleted {
		if !slices.Equal(operation, []string{subjects.KVDelete}) {
			wrong("header %s is %q, want %q: the last event is %s", subjects.HeaderKVOperation, operation, subjects.KVDelete, w.lastText())
		}
		if len(entry.Data) > 0 {
			wrong("the marker holds %d bytes", len(entry.Data))
		}
		return
	}
	if marked {
		wrong("header %s is %q on a value: the last event is %s", subjects.HeaderKVOperation, operation, w.lastText())
		return
	}
	app, form := &appv1.App{}, entry.Header.Get(subjects.CEDataContentType)
	if err := decode(entry.Data, form, app); err != nil {
		wrong("decode the App: %v", err)
		return
	}
	if want := w.entryApp(entry); want != nil && !sameApp(app, want, form) {
		wrong("the App is not that of the last event, %s: %s", w.lastText(), difference(app, want))
	}
}

// entryApp is the App that an entry has to show: that of the last event, but for
// what one of the two had to leave out and the other had not.
func (w *walk) entryApp(entry *Message) *appv1.App {
	cut := entry.Header.Get(subjects.HeaderTruncated)
	if leftOut(cut) == leftOut(w.last.get(subjects.HeaderTruncated)) {
		return w.last.app
	}
	whole := w.last.full
	if whole == nil {
		whole = w.last.app
	}
	return without(whole, cut)
}

// leftOut are the fields of an App, and of nothing beside it, that a header
// says were left out.
func leftOut(truncated string) (fields [2]bool) {
	for i, field := range []string{subjects.TruncatedSpec, subjects.TruncatedStatus} {
		fields[i] = slices.Contains(list(truncated), field)
	}
	return fields
}

// sharedHeaders are the names of the headers that an entry has in common with
// its event.
func sharedHeaders(entry, event map[string][]string) []string {
	names := map[string]bool{}
	for _, h := range []map[string][]string{entry, event} {
		for name := range h {
			if strings.HasPrefix(name, flyteHeaders) || strings.HasPrefix(name, cloudEventsHeaders) {
				names[name] = true
			}
		}
	}
	delete(names, subjects.HeaderEventSequence)
	return slices.Sorted(maps.Keys(names))
}

// The headers that an entry takes over from its event.
const (
	flyteHeaders       = "Flyte-"
	cloudEventsHeaders = "ce-"
)
