package pods_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// BenchmarkKubernetes reads two million lines of 120 bytes, not counting their times.
func BenchmarkKubernetes(b *testing.B) {
	p := newPlace(b)
	k := p.kubernetes()
	a := p.newApp("fast")
	pod := a.run("00001", func(o *testenv.PodOptions) { o.Log = testenv.InMemory })
	// Written in the course of an hour: what is asked for once more, the last
	// two seconds, is little.
	const seconds, perSecond = 2000, 1000
	const lines = seconds * perSecond
	batch := slices.Repeat([]string{strings.Repeat("x", 119)}, perSecond)
	began := time.Now().Add(-time.Hour)
	for i := range seconds {
		pod.WriteAt(began.Add(time.Duration(i)*time.Second), batch...)
	}
	q := all(a)
	q.Follow = logsvc.FollowNever
	b.ReportAllocs()
	for b.Loop() {
		stream, err := k.Open(b.Context(), q)
		if err != nil {
			b.Fatal(err)
		}
		sink := &counter{}
		began := time.Now()
		if err := stream.Run(b.Context(), sink); err != nil {
			b.Fatal(err)
		}
		stream.Close()
		if sink.lines != lines {
			b.Errorf("got %d lines, want %d", sink.lines, lines)
		}
		b.ReportMetric(float64(lines)/time.Since(began).Seconds(), "lines/s")
	}
}

// counter is a sink that does nothing.
type counter struct{ lines, calls int }

func (c *counter) Lines(_ context.Context, _ string, lines []logsvc.Line, _ bool, _ string) error {
	c.lines += len(lines)
	c.calls++
	return nil
}

func (*counter) Replicas(context.Context, []string) error { return nil }

func (*counter) Note(context.Context, subjects.LogNote, []string, string) error { return nil }
