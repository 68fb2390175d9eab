package projector

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
)

// BenchmarkProjection takes events of 3 KB from the stream to the bucket. The processor time has the
// server's in it, and that of appending where the events are this session's own: "appended" is
// without a projector.
func BenchmarkProjection(b *testing.B) {
	for _, test := range []struct {
		name         string
		own, project bool
	}{{"appended", false, false}, {"own", true, true}, {"others", false, true}} {
		b.Run(test.name, func(b *testing.B) {
			r := newRig(b)
			events := r.chain(b.N, 100)
			p, snap := r.newProjector(zap.NewNop())
			if test.own {
				r.run(p, snap)
				r.poll("it does not catch up", func() bool {
					select {
					case <-p.CaughtUp:
						return true
					default:
						return false
					}
				})
			}
			appends, err := jetstream.New(r.nc)
			if err != nil {
				b.Fatal(err)
			}
			start := func() (time.Time, time.Duration) {
				b.ReportAllocs()
				b.ResetTimer()
				return time.Now(), processorTime(b)
			}
			began, before := start()
			flights := make(chan jetstream.PubAckFuture, 256)
			done := make(chan struct{})
			go func() {
				defer close(done)
				n := 0
				for f := range flights {
					select {
					case ack := <-f.Ok():
						events[n].Record.Sequence = ack.Sequence
						p.NoteStored(ack.Sequence, events[n])
					case err := <-f.Err():
						b.Error(err)
					}
					n++
				}
			}()
			for i, ev := range events {
				p.NoteSent(uint64(i) + 1)
				f, err := appends.PublishMsgAsync(ev.Msg)
				if err != nil {
					b.Fatal(err)
				}
				flights <- f
			}
			close(flights)
			<-done
			if test.project && !test.own {
				p, snap = r.newProjector(zap.NewNop())
				snap.Position, snap.Keys = 1, 1 // else superseded events are skipped
				began, before = start()
				r.run(p, snap)
			}
			if test.project {
				if err := p.WaitWritten(b.Context(), uint64(b.N)); err != nil {
					b.Fatal(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/float64(b.N), "cpu-µs/event")
			b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "events/s")
			b.ReportMetric(float64(counted(b, r.metrics.fetched))/float64(b.N), "fetched/event")
		})
	}
}

// chain makes n events of so many apps, one after another, that do not expect to be in a chain.
func (r *rig) chain(n, apps int) []*app.Event {
	r.t.Helper()
	message := strings.Repeat("x", 1200)
	last := map[string]*app.Record{}
	events := make([]*app.Event, n)
	for i := range events {
		id := otherApp(fmt.Sprint("a", i%apps))
		svc := testService("u-"+id.Name, fmt.Sprint(i+1), "True", func(svc *kservice.Service) { svc.Status.Conditions[0].Message = message })
		ev, err := r.encoder.Encode(id, app.NewUpsert(app.State{Service: svc}, last[id.Name] == nil), last[id.Name])
		if err != nil {
			r.t.Fatal(err)
		}
		ev.Record.Sequence = uint64(i) + 1
		last[id.Name], events[i] = ev.Record, ev
	}
	return events
}

// processorTime is what the process has used.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
