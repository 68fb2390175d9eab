package plan

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var testID, testService, testRevision, testEncoder = apptest.ID, encodertest.Service, apptest.Revision, encodertest.New

// publishedAs is the record of an app after its state was published.
func publishedAs(t *testing.T, s app.State) *app.Record {
	t.Helper()
	ev, err := testEncoder().Encode(testID, app.NewUpsert(s, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.Record.Sequence = 5
	return ev.Record
}

// publishedAt is the record of an event at sequence.
func publishedAt(uid string, sequence uint64) *app.Record {
	return &app.Record{Kind: subjects.Created, Sequence: sequence, UID: uid, ResourceVersion: "7", App: encodertest.Encoded(&appv1.App{})}
}
