// Package encodertest has the encoder that the tests of package bridge and its rooms use. It is
// apart from apptest, which the tests of package app itself import.
package encodertest

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Keeper keeps what the tests publish.
var Keeper = app.Keeper{App: kservice.Config{BaseDomain: "apps.example.com"}, Form: subjects.ContentTypeJSON}

// Keep is what a bridge keeps of a Knative Service.
func Keep(svc *kservice.Service) *app.CachedService { return Keeper.Keep(svc) }

// Service is what a bridge keeps of apptest.Service after the changes.
func Service(uid, version, status string, change ...func(*kservice.Service)) *app.CachedService {
	svc := apptest.Service(uid, version, status)
	for _, c := range change {
		c(svc)
	}
	return Keep(svc)
}

// Encoded is an App as a record has it.
func Encoded(a *appv1.App) app.Encoded {
	encoded, err := app.EncodeApp(a, subjects.ContentTypeJSON)
	if err != nil {
		panic(err)
	}
	return encoded
}

// New returns an encoder of the cluster "test" for JSON messages of at most 1 MiB.
func New() *app.Encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &app.Encoder{
		Subjects: s, Source: subjects.Source("test"), Stream: subjects.DefaultStream,
		Form: Keeper.Form, MaxSize: func() int { return 1 << 20 },
	}
}
