package projector

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
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
