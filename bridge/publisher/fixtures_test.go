package publisher

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var testID, testService, testRevision = apptest.ID, apptest.Service, apptest.Revision

func testEncoder() *app.Encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &app.Encoder{
		Subjects: s, Source: subjects.Source("test"), Stream: subjects.DefaultStream,
		Form: subjects.ContentTypeJSON, App: kservice.Config{BaseDomain: "apps.example.com"}, MaxSize: func() int { return 1 << 20 },
	}
}

// publishedAt is the record of an event at sequence.
func publishedAt(uid string, sequence uint64) *app.Record {
	return &app.Record{Kind: subjects.Created, Sequence: sequence, UID: uid, ResourceVersion: "7", App: &appv1.App{}}
}
