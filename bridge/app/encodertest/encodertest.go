// Package encodertest has the encoder that the tests of package bridge and its rooms use. It is
// apart from apptest, which the tests of package app itself import.
package encodertest

import (
	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// New returns an encoder of the cluster "test" for JSON messages of at most 1 MiB.
func New() *app.Encoder {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		panic(err)
	}
	return &app.Encoder{
		Subjects: s, Source: subjects.Source("test"), Stream: subjects.DefaultStream,
		Form: subjects.ContentTypeJSON, App: kservice.Config{BaseDomain: "apps.example.com"}, MaxSize: func() int { return 1 << 20 },
	}
}
