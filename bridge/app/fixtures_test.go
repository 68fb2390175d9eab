package app

import (
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

var testID, testRevision = apptest.ID, apptest.Revision

var testKeeper = Keeper{App: kservice.Config{BaseDomain: "apps.example.com"}, Form: subjects.ContentTypeJSON}

// testService is what is kept of apptest.Service after the changes.
func testService(version, status string, change ...func(*kservice.Service)) *CachedService {
	svc := apptest.Service("u1", version, status)
	for _, c := range change {
		c(svc)
	}
	return testKeeper.Keep(svc)
}

func testRaw(change func(*kservice.Service)) *kservice.Service {
	svc := apptest.Service("u1", "1", "True")
	change(svc)
	return svc
}

// encoded is an App as a record has it.
func encoded(app *appv1.App) Encoded {
	e, err := EncodeApp(app, subjects.ContentTypeJSON)
	if err != nil {
		panic(err)
	}
	return e
}

func testEncoder() *Encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &Encoder{
		Subjects: s, Source: subjects.Source("test"), Stream: subjects.DefaultStream,
		Form: testKeeper.Form, MaxSize: func() int { return 1 << 20 },
	}
}
