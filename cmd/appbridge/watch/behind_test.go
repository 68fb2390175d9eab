package watch_test

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// behind has the bucket reflect what it did before a change.
func (p *publisher) behind(change func()) {
	p.tb.Helper()
	bucket, err := p.js.Stream(p.tb.Context(), subjects.BucketStream(subjects.DefaultBucket))
	if err != nil {
		p.tb.Fatal(err)
	}
	var before []*jetstream.RawStreamMsg
	for sequence := range bucket.CachedInfo().State.LastSeq {
		m, err := bucket.GetMsg(p.tb.Context(), sequence+1)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			p.tb.Fatal(err)
		}
		before = append(before, m)
	}
	change()
	if err := bucket.Purge(p.tb.Context()); err != nil {
		p.tb.Fatal(err)
	}
	for _, m := range before {
		if _, err := p.js.PublishMsg(p.tb.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
			p.tb.Fatal(err)
		}
	}
}

// The bucket is behind the stream: it is being written again, or no bridge writes it. What there is, or
// was, follows from the events behind it, too.
func TestBucketBehind(t *testing.T) {
	t.Parallel()
	first, second := deployed()
	for _, test := range []struct {
		name         string
		before       []step // in the bucket
		behind       []step
		want, at     string // in the end, and before the last event
		until        string // is not so
		err          error
		once         string // ids
		statuses     []string
		onceStatuses string
	}{
		{
			name: "no entry", behind: first, want: "search ACTIVE", at: "search PENDING", until: "DELETED", err: watch.ErrTimeout, once: search + "\n",
			statuses: []string{"PENDING"},
		},
		{
			name: "an earlier state", before: first, behind: second[:2], want: "search PENDING", at: "search ACTIVE", until: "ACTIVE", err: watch.ErrTimeout, once: search + "\n",
			statuses: []string{"PENDING"}, onceStatuses: search + "\n",
		},
		{
			name: "deleted since", before: first, behind: []step{{app: "shop/production/cart", kind: subjects.Created, status: "PENDING"}, {app: search, kind: subjects.Deleted}},
			want: "cart PENDING", at: "cart PENDING, search ACTIVE", until: "ACTIVE", err: watch.ErrGone, once: "shop/production/cart\n",
			statuses: []string{"ACTIVE"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			p := newPublisher(t, s.ClientURL())
			for _, step := range test.before {
				p.publish(step)
			}
			var times []time.Time
			p.behind(func() { times = p.stored(test.behind) })
			js := dial(t, s.ClientURL())
			names := func(reader appwatch.Options) string {
				r := start(t, js, watch.Options{Reader: reader, Once: true, Form: watch.Name, Timeout: suite.Patience})
				if err := r.end(); err != nil {
					t.Errorf("once: got %v", err)
				}
				return r.out.String()
			}
			if got := names(appwatch.Options{}); got != test.once {
				t.Errorf("once: got %q, want %q", got, test.once)
			}
			if got := names(appwatch.Options{Project: "shop", Statuses: test.statuses}); got != test.onceStatuses {
				t.Errorf("once, %v: got %q, want %q", test.statuses, got, test.onceStatuses)
			}
			for i, want := range []string{test.at, test.want} {
				if got, err := statesAt(t, js, times[len(times)-2+i], appwatch.Options{}); err != nil || got != want {
					t.Errorf("at event %d: got %q, %v; want %q", len(times)-1+i, got, err, want)
				}
			}
			r := start(t, js, watch.Options{Reader: searchOnly, Until: &watch.Until{Status: test.until}, Timeout: 2 * time.Second})
			if err := r.end(); !errors.Is(err, test.err) {
				t.Errorf("until %s: got %v; printed %s", test.until, err, r.out)
			}
		})
	}
}
