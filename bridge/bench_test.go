package bridge

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// BenchmarkEncode is what one update costs before it is sent: conversion,
// encoding of both states, headers. Convert is the part of it that is not wire
// format.
func BenchmarkEncode(b *testing.B) {
	s := state{service: testService("u1", "100", "True"), revision: testRevision("99", 2)}
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		b.Run(form, func(b *testing.B) {
			e := testEncoder()
			e.form = form
			first, err := e.encode(testID, newUpsert(s, true), nil)
			if err != nil {
				b.Fatal(err)
			}
			first.record.sequence = 1
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.encode(testID, newUpsert(s, false), first.record); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("convert", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := kservice.Convert(s.service, s.revision, kservice.Config{BaseDomain: "apps.example.com"}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
