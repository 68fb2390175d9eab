package watch_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// configure changes the configuration of a stream.
func (p *publisher) configure(name string, change func(*jetstream.StreamConfig)) {
	p.tb.Helper()
	stream, err := p.js.Stream(p.tb.Context(), name)
	if err != nil {
		p.tb.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	change(&cfg)
	if _, err := p.js.UpdateStream(p.tb.Context(), cfg); err != nil {
		p.tb.Fatal(err)
	}
}

// lose removes an event, and records it in the stream's metadata as a bridge does.
func (p *publisher) lose(sequence uint64) {
	p.tb.Helper()
	stream, err := p.js.Stream(p.tb.Context(), subjects.DefaultStream)
	if err == nil {
		err = stream.DeleteMsg(p.tb.Context(), sequence)
	}
	if err != nil {
		p.tb.Fatal(err)
	}
	p.configure(subjects.DefaultStream, func(cfg *jetstream.StreamConfig) {
		cfg.Metadata[subjects.MetadataLostRanges] = subjects.LostRange{From: sequence, To: sequence}.String()
	})
}

// notice appends a notice of loss.
func (p *publisher) notice(sequence uint64) {
	p.tb.Helper()
	from, to := subjects.FormatNotice(subjects.LostRange{From: sequence, To: sequence})
	msg := &nats.Msg{Subject: p.names.Notice(), Header: nats.Header{subjects.HeaderLostFrom: {from}, subjects.HeaderLostTo: {to}}}
	if _, err := p.js.PublishMsg(p.tb.Context(), msg); err != nil {
		p.tb.Fatal(err)
	}
}

// replace puts an empty stream in the place of that of the events.
func (p *publisher) replace(id string) {
	p.tb.Helper()
	stream, err := p.js.Stream(p.tb.Context(), subjects.DefaultStream)
	if err != nil {
		p.tb.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Metadata[subjects.MetadataStreamID] = id
	if err := p.js.DeleteStream(p.tb.Context(), subjects.DefaultStream); err != nil {
		p.tb.Fatal(err)
	}
	clear(p.last)
	suite.Recreate(p.tb, p.js, cfg)
}

// A snapshot that is read again is no delete of the app: what there is is known at its end.
func TestUntilDeletedAfterALoss(t *testing.T) {
	t.Parallel()
	created := step{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1, version: 10}
	for name, happens := range map[string]func(p *publisher, r *running, other uint64){
		"a notice": func(p *publisher, r *running, other uint64) {
			p.lose(other)
			p.notice(other)
			r.waitFor(r.notes, "events are lost (sequences 2-2)")
		},
		"a rollback": func(p *publisher, r *running, _ uint64) {
			p.publish(step{app: search, kind: subjects.Updated, status: "FAILED", generation: 1, version: 11})
			r.prints("FAILED")
			p.replace(streamID)
			p.publish(created)
			r.waitFor(r.notes, "the stream came back with less")
			p.publish(step{app: search, kind: subjects.Updated, status: "PENDING", generation: 1, version: 12})
		},
		"a new stream": func(p *publisher, _ *running, _ uint64) {
			p.replace("another")
			p.publish(created)
			p.configure(subjects.BucketStream(subjects.DefaultBucket), func(cfg *jetstream.StreamConfig) {
				cfg.Metadata[subjects.MetadataStreamID] = "another"
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			p := newPublisher(t, s.ClientURL())
			p.publish(created)
			other := p.publish(step{app: "shop/production/cart", kind: subjects.Created, status: "ACTIVE", generation: 1, version: 20})
			r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "DELETED"}, Timeout: suite.Patience})
			ready(t, r, true)
			happens(p, r, other)
			r.waitFor(r.notes, "reading all apps again")
			p.publish(step{app: search, kind: subjects.Updated, status: "STOPPED", generation: 1, version: 30})
			r.prints("STOPPED")
			r.goesOn("a snapshot with the app")
			p.publish(step{app: search, kind: subjects.Deleted, version: 31})
			if err := r.end(); err != nil {
				t.Errorf("got %v", err)
			}
		})
	}
}

// reads waits until a watch reads the event stream.
func (p *publisher) reads(r *running) {
	p.tb.Helper()
	suite.Eventually(p.tb, suite.Patience, "the watch reads", func() error {
		r.goesOn("its first snapshot")
		stream, err := p.js.Stream(p.tb.Context(), subjects.DefaultStream)
		if err == nil && stream.CachedInfo().State.Consumers == 0 {
			err = errors.New("the stream has no consumer")
		}
		return err
	})
}

// A snapshot that has what is lost is not what there is: it is read again once it is repaired.
func TestOnceWithALoss(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	p.publish(step{app: "shop/production/cart", kind: subjects.Created, status: "ACTIVE", generation: 1})
	p.lose(p.publish(step{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1}))
	r := start(t, dial(t, s.ClientURL()), watch.Options{Form: watch.Name, Once: true, Timeout: suite.Patience})
	p.reads(r)
	bucket, err := p.js.Stream(t.Context(), subjects.BucketStream(subjects.DefaultBucket))
	if err == nil {
		key, _ := idOf(search).Key()
		err = bucket.Purge(t.Context(), jetstream.WithPurgeSubject(subjects.BucketSubject(subjects.DefaultBucket, key)))
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := r.end(); err != nil || r.out.String() != "shop/production/cart\n" || r.notes.String() != "" {
		t.Errorf("got %v, %q and %q", err, r.out, r.notes)
	}
}

// The reason of a timeout is the loss.
func TestOnceWithALossThatStays(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	p.lose(p.publish(step{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1}))
	growing(t, "a loss of events has not been repaired", func(timeout time.Duration) error {
		r := start(t, dial(t, s.ClientURL()), watch.Options{Once: true, Timeout: timeout})
		err := r.end()
		if !errors.Is(err, watch.ErrTimeout) || r.out.String() != "" {
			t.Fatalf("got %v and %q", err, r.out)
		}
		return err
	})
}

// growing calls do with longer and longer timeouts until its error has a text.
func growing(t *testing.T, text string, do func(timeout time.Duration) error) {
	t.Helper()
	for timeout := 300 * time.Millisecond; ; timeout *= 4 {
		err := do(timeout)
		if err != nil && strings.Contains(err.Error(), text) {
			return
		}
		if timeout > suite.Patience {
			t.Fatalf("got %v, want %q", err, text)
		}
	}
}

// A delete that is lost is none.
func TestUntilDeletedWithALostDelete(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	p.publish(step{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1})
	before := p.last[idOf(search)]
	p.lose(p.publish(step{app: search, kind: subjects.Deleted}))
	r := start(t, dial(t, s.ClientURL()), watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "DELETED"}, Timeout: suite.Patience})
	p.reads(r)
	p.last[idOf(search)] = before
	p.publish(step{app: search, kind: subjects.Updated, status: "STOPPED", generation: 1})
	r.prints("STOPPED")
	r.goesOn("the repair")
	p.publish(step{app: search, kind: subjects.Deleted})
	if err := r.end(); err != nil {
		t.Errorf("got %v", err)
	}
}

// An app that has not changed for longer than the stream keeps events is no reason to wait.
func TestOnceOfAnOldApp(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	all := history()
	for _, step := range all {
		p.publish(step)
	}
	stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
	if err == nil {
		err = stream.Purge(t.Context(), purgeBelow(6))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]watch.Options{
		"once": {Reader: searchOnly, Form: watch.Name, Once: true}, "until": {Reader: searchOnly, Until: &watch.Until{Status: "ACTIVE"}},
	} {
		opts.Timeout = suite.Patience
		r := start(t, dial(t, s.ClientURL()), opts)
		if err := r.end(); err != nil || !strings.Contains(r.out.String(), search) || r.notes.String() != "" {
			t.Errorf("%s: got %v, %q and %q", name, err, r.out, r.notes)
		}
	}
}

// What happens to the stream is reported beside every form of output but documents, which have it.
func TestLossIsReported(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]watch.Options{
		"plain": {}, "events": {Events: true}, "name": {Form: watch.Name}, "until": {Reader: searchOnly, Until: &watch.Until{Status: "STOPPED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := jetStream(t)
			p := newPublisher(t, s.ClientURL())
			p.publish(step{app: search, kind: subjects.Created, status: "ACTIVE", generation: 1})
			r := start(t, dial(t, s.ClientURL()), opts)
			p.reads(r)
			lost := p.publish(step{app: search, kind: subjects.Updated, status: "PENDING", generation: 1})
			r.prints(search)
			p.lose(lost)
			p.notice(lost)
			waitNote(t, r, "appbridge: events are lost (sequences 2-2): the stream lost acknowledged events\n")
			p.publish(step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 1, replicas: 2})
			waitNote(t, r, "appbridge: reading all apps again (sequences 2-2): the stream lost acknowledged events\n")
		})
	}
}

// A watch that is interrupted before it could print anything has not done what it was for.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	js := dial(t, s.ClientURL())
	for name, test := range map[string]struct {
		opts watch.Options
		want error
	}{
		"once":   {watch.Options{Once: true}, context.Canceled},
		"at":     {watch.Options{At: time.Now()}, context.Canceled},
		"since":  {watch.Options{Reader: appwatch.Options{Since: time.Unix(1, 0)}, Once: true}, context.Canceled},
		"plain":  {watch.Options{}, nil},
		"events": {watch.Options{Events: true}, nil},
	} {
		test.opts.Timeout = time.Hour
		r := start(t, js, test.opts)
		waitNote(t, r, "not readable, trying again: ")
		r.stop()
		if err := r.end(); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}
