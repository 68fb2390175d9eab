package watch

import (
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// appOf is the app of a state or an event. A body that cannot be decoded is shown as none.
func appOf(it appwatch.Item) *appview.App {
	a := &appview.App{
		ID: it.ID, Kind: it.Kind, Sequence: it.Sequence,
		MessageID: it.MessageID(), Status: it.Status(), PreviousStatus: it.PreviousStatus(), PreviousSequence: it.PreviousSequence(),
		Merged: it.Merged(), Synthesized: it.Synthesized(), FinalUnknown: it.FinalStateUnknown(),
		Skipped: it.Skipped, Differs: it.Changed, Time: it.Time(), Stored: it.Stored(),
		Body: func() *appv1.App { return orNone(it.State()) },
	}
	if it.Type == appwatch.Event && it.Kind == subjects.Updated {
		a.Old = func() *appv1.App { return orNone(it.Old()) }
	}
	readVersions(a, it.Header())
	return a
}

// readVersions sets what the headers hold as text.
func readVersions(a *appview.App, h nats.Header) {
	a.UID, a.ResourceVersion = h.Get(subjects.HeaderUID), h.Get(subjects.HeaderResourceVersion)
	a.DeletedVersion, a.Revision = h.Get(subjects.HeaderDeletedResourceVersion), h.Get(subjects.HeaderRevision)
	a.PodReason, a.ReasonRevision = subjects.Reason(h.Get(subjects.HeaderReason)), h.Get(subjects.HeaderReasonRevision)
	a.Generation, _ = strconv.ParseUint(h.Get(subjects.HeaderGeneration), 10, 64) // 0 for none
	if text := h.Get(subjects.HeaderTruncated); text != "" {
		a.Truncated = strings.Split(text, ",")
	}
}

func orNone(app *appv1.App, err error) *appv1.App {
	if err != nil {
		return nil
	}
	return app
}

// reason is the word of a document for why events are lost or read again.
func reason(err error) string {
	for _, known := range []struct {
		err  error
		word string
	}{
		{appwatch.ErrNotice, "notice"},
		{appwatch.ErrRemoved, "removed"},
		{appwatch.ErrRolledBack, "rolled-back"},
		{appwatch.ErrOtherStream, "other-stream"},
		{appwatch.ErrBucket, "bucket"},
	} {
		if errors.Is(err, known.err) {
			return known.word
		}
	}
	if err == nil {
		return ""
	}
	return err.Error()
}
