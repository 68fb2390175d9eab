package bridge

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
)

// BenchmarkDeletedApps creates and deletes b.N apps beside 1,000 that stay, through source, queue,
// publisher and projector to a nats-server that is a process of its own. It reports live heap and
// resident memory without deleted apps and with b.N, and at a screen of the audit over all of them:
//
//	go test ./bridge -run '^$' -bench DeletedApps -benchtime 1000000x -timeout 2h
func BenchmarkDeletedApps(b *testing.B) {
	l := newLively(b, benchServer(b))
	for i := range 1000 {
		l.shows(fmt.Sprint("alive-", i))
	}
	l.catchesUp()
	figures := map[string]float64{}
	note := func(when string) {
		figures["MiB-resident-"+when] = resident(b)
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		figures["MiB-heap-"+when] = float64(stats.HeapAlloc) / (1 << 20)
	}
	note("before")
	b.ResetTimer()
	for i := range b.N {
		l.deletes(l.shows(fmt.Sprint("gone-", i)))
		if i%1000 == 999 {
			l.catchesUp()
		}
	}
	l.catchesUp()
	b.StopTimer()
	note("after")
	if suspects := l.screens(); len(suspects) > 0 {
		b.Fatalf("suspects: %q", suspects[:min(len(suspects), 3)])
	}
	note("after-audit")
	for unit, figure := range figures {
		b.ReportMetric(figure, unit)
	}
}

// resident is the memory of this process, in MiB.
func resident(b *testing.B) float64 {
	b.Helper()
	status, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseFloat(string(bytes.Fields(status)[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * float64(os.Getpagesize()) / (1 << 20)
}
