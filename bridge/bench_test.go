package bridge

import (
	"runtime"
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// BenchmarkEncode is what one update costs before it is sent: "keep" converts and encodes a version of
// a Knative Service, once; "splice" makes its event from the bytes of both states.
func BenchmarkEncode(b *testing.B) {
	svc := apptest.Service("u1", "100", "True")
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		keeper := app.Keeper{App: kservice.Config{BaseDomain: "apps.example.com"}, Form: form}
		b.Run("keep "+form, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keeper.Keep(svc)
			}
		})
		b.Run("splice "+form, func(b *testing.B) {
			e, s := testEncoder(), app.State{Service: keeper.Keep(svc), Revision: testRevision("99", 2)}
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
}

// BenchmarkRetained is the memory of the last state and the record of one app: encoded, as it is kept,
// and beside it as decoded objects.
func BenchmarkRetained(b *testing.B) {
	config := kservice.Config{BaseDomain: "apps.example.com"}
	source := func() *kservice.Service { return apptest.Service("u1", "100", "True").DeepCopy() }
	for name, keep := range map[string]func() any{
		"encoded": func() any {
			s := app.State{Service: app.Keeper{App: config, Form: subjects.ContentTypeJSON}.Keep(source()), Revision: testRevision("99", 2)}
			ev, err := testEncoder().Encode(testID, app.NewUpsert(s, true), nil)
			if err != nil {
				b.Fatal(err)
			}
			return []any{s, ev.Record}
		},
		"decoded": func() any {
			svc := source()
			decoded, err := kservice.Convert(svc, nil, config)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = kservice.Trim(svc)
			return []any{app.State{Revision: testRevision("99", 2)}, svc, &app.Record{}, decoded}
		},
	} {
		b.Run(name, func(b *testing.B) {
			const apps = 5000
			kept := make([]any, apps)
			var before, after runtime.MemStats
			for b.Loop() {
				clear(kept)
				runtime.GC()
				runtime.ReadMemStats(&before)
				for i := range kept {
					kept[i] = keep()
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/apps, "B/app")
			runtime.KeepAlive(kept)
		})
	}
}
