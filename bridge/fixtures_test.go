package bridge

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var testID, testService, testRevision = apptest.ID, apptest.Service, apptest.Revision

func testEncoder() *encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &encoder{
		subjects: s, source: subjects.Source("test"), stream: subjects.DefaultStream,
		form: subjects.ContentTypeJSON, app: kservice.Config{BaseDomain: "apps.example.com"}, maxSize: func() int { return 1 << 20 },
	}
}

// publishedAs is the record of an app after its state was published.
func publishedAs(t *testing.T, s state) *record {
	t.Helper()
	ev, err := testEncoder().encode(testID, newUpsert(s, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	ev.record.sequence = 5
	return ev.record
}

// publishedAt is the record of an event at sequence.
func publishedAt(uid string, sequence uint64) *record {
	return &record{kind: subjects.Created, sequence: sequence, uid: uid, resourceVersion: "7", app: &appv1.App{}}
}
