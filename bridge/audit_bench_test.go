package bridge

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/appbridge/appbridge/bridge/audit"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// BenchmarkAuditRound is a round of the audit over 20,000 apps, each with an update: two lists of
// 20,000 objects, the last messages of 40,000 subjects of the stream, and 20,000 keys. cpu-s/round
// is processor time of this process, which makes the lists as well; one percent of a core over ten
// minutes is 6 s.
func BenchmarkAuditRound(b *testing.B) {
	const apps = 20_000
	l := newLively(b, benchServer(b))
	lists, k := newLister(b)
	lists.bodies = map[string][]byte{}
	meta := func(name, uid, version string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "flyte", UID: types.UID(uid), ResourceVersion: version,
			Annotations:   map[string]string{"flyte.org/spec": strings.Repeat("s", 1000)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "controller", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 3500))}},
		}}
	}
	for range 2 {
		for i := range apps {
			svc := l.shows(fmt.Sprint("app-", i))
			if len(lists.items["services"]) < apps {
				lists.items["services"] = append(lists.items["services"], meta(svc.Name, string(svc.UID), svc.ResourceVersion))
			}
		}
		l.catchesUp()
	}
	for i := range apps {
		rev := testRevision(fmt.Sprint(100+i), 1)
		rev.Name, rev.UID = fmt.Sprint("rev-", i+2), types.UID(fmt.Sprint("r-", i))
		l.bridge.source.Revisions().OnAdd(rev, false)
		lists.items["revisions"] = append(lists.items["revisions"], meta(rev.Name, string(rev.UID), rev.ResourceVersion))
	}
	lists.has(watch.KindRevision, testRevision("99", 2).ObjectMeta)
	lists.version = l.version
	source := l.bridge.newSourceAudit(k)
	round := func() {
		for _, part := range []audit.Part{source, l.audit} {
			suspects, err := part.Screen(b.Context(), &audit.Pace{})
			if err != nil || len(suspects) > 0 {
				b.Fatalf("suspects: %q, %v", suspects[:min(len(suspects), 3)], err)
			}
		}
	}
	round()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used := processorTime(b)
	rounds := 0
	for b.Loop() {
		round()
		rounds++
	}
	b.ReportMetric((processorTime(b)-used).Seconds()/float64(rounds), "cpu-s/round")
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(rounds)/(1<<20), "MB-allocated/round")
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric((float64(after.HeapAlloc)-float64(before.HeapAlloc))/(1<<20), "MB-left")
}

// benchServer is a nats-server that is a process of its own, so that its memory and time are not counted.
func benchServer(b *testing.B) string {
	b.Helper()
	servers, err := testenv.StartNATS(b.Context(), testenv.NATSOptions{Servers: 1, Logf: b.Logf})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := servers.Close(); err != nil {
			b.Error(err)
		}
	})
	return servers.URL()
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
