package bridge

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// BenchmarkEncode is what one update costs before it is sent: conversion,
// encoding of both states, headers. Convert is the part of it that is not wire
// format.
func BenchmarkEncode(b *testing.B) {
	s := app.State{Service: testService("u1", "100", "True"), Revision: testRevision("99", 2)}
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		b.Run(form, func(b *testing.B) {
			e := testEncoder()
			e.Form = form
			first, err := e.Encode(testID, app.NewUpsert(s, true), nil)
			if err != nil {
				b.Fatal(err)
			}
			first.Record.Sequence = 1
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Encode(testID, app.NewUpsert(s, false), first.Record); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("convert", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := kservice.Convert(s.Service, s.Revision, kservice.Config{BaseDomain: "apps.example.com"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
