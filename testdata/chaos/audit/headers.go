package audit

import (
	"slices"
	"strconv"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// same reports a header that is not what it has to be; empty means absent.
func (w *walk) same(e *event, name, want string) {
	if got := e.get(name); got != want {
		w.drift(e, "header %s is %q, want %q", name, got, want)
	}
}

// chain checks that an event refers to the one before: by its header, by its
// message id, and by the fence that the server held it to.
func (w *walk) chain(e *event) {
	var previous uint64
	if w.last != nil {
		previous = w.last.Sequence
	}
	text := func(sequence uint64) string {
		if sequence == 0 {
			return ""
		}
		return strconv.FormatUint(sequence, 10)
	}
	got := e.get(subjects.HeaderPreviousSequence)
	if w.repeat != 0 && got == text(w.repeat) {
		previous = w.repeat
	}
	for _, sequence := range w.linked {
		if got == text(sequence) {
			previous = sequence
		}
	}
	if got != text(previous) {
		w.reordered(e, "header %s is %q, want %q", subjects.HeaderPreviousSequence, got, text(previous))
	}
	id := e.get(subjects.HeaderMsgID)
	want := subjects.MessageID{UID: e.uid(), ResourceVersion: e.version(), PreviousSequence: previous}
	if parsed, err := subjects.ParseMessageID(id); id != want.String() {
		parsed.PreviousSequence = previous
		if err == nil && parsed == want {
			w.reordered(e, "message id is %q, want %q", id, want)
		} else {
			w.drift(e, "message id is %q, want %q", id, want)
		}
	}
	w.same(e, subjects.CEID, id)
	if fence, err := strconv.ParseUint(e.get(subjects.HeaderExpectedLastSubjectSequence), 10, 64); err != nil || fence >= e.Sequence {
		w.drift(e, "header %s is %q, not an earlier sequence", subjects.HeaderExpectedLastSubjectSequence, e.get(subjects.HeaderExpectedLastSubjectSequence))
	}
	if filter, err := w.in.Subjects.EventFilter(e.id); err == nil {
		w.same(e, subjects.HeaderExpectedLastSubjectSequenceSubject, filter)
	}
}

// headers checks what needs nothing but the event itself.
func (w *walk) headers(e *event) {
	w.same(e, subjects.CESpecVersion, subjects.SpecVersion)
	w.same(e, subjects.CESource, w.source)
	if !w.in.Older || e.get(subjects.CEDataSchema) != "" {
		w.same(e, subjects.CEDataSchema, subjects.DataSchema)
	}
	w.same(e, subjects.CEType, e.kind.Type())
	if key, err := e.id.Key(); err == nil {
		w.same(e, subjects.CESubject, key)
	}
	if at := e.get(subjects.CETime); at != "" {
		if _, err := time.Parse(time.RFC3339Nano, at); err != nil {
			w.drift(e, "header %s is %q, not a time", subjects.CETime, at)
		}
	}
	for _, name := range []string{subjects.HeaderSynthesized, subjects.HeaderFinalStateUnknown} {
		if got, there := e.Header[name]; there && !slices.Equal(got, []string{subjects.FlagTrue}) {
			w.drift(e, "header %s is %q, want %q or none", name, got, subjects.FlagTrue)
		}
	}
	if got, there := e.Header[subjects.HeaderMergedUpdates]; there && e.merged() == 0 {
		w.drift(e, "header %s is %q, not a number of updates", subjects.HeaderMergedUpdates, got)
	}
	for _, field := range list(e.get(subjects.HeaderTruncated)) {
		if !slices.Contains([]string{subjects.TruncatedOldApp, subjects.TruncatedSpec, subjects.TruncatedStatus}, field) {
			w.drift(e, "header %s names %q", subjects.HeaderTruncated, field)
		}
	}
	if e.kind != subjects.Deleted {
		w.same(e, subjects.HeaderDeletedResourceVersion, "")
		if e.flag(subjects.HeaderFinalStateUnknown) {
			w.drift(e, "header %s on what is no delete", subjects.HeaderFinalStateUnknown)
		}
	}
	if _, there := e.Header[subjects.HeaderEventSequence]; there {
		w.drift(e, "header %s on an event", subjects.HeaderEventSequence)
	}
}
