package watch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// stored publishes steps and returns when the server stored each event.
func (p *publisher) stored(steps []step) []time.Time {
	p.tb.Helper()
	stream, err := p.js.Stream(p.tb.Context(), subjects.DefaultStream)
	if err != nil {
		p.tb.Fatal(err)
	}
	var times []time.Time
	for _, s := range steps {
		msg, err := stream.GetMsg(p.tb.Context(), p.publish(s))
		if err != nil {
			p.tb.Fatal(err)
		}
		times = append(times, msg.Time)
	}
	return times
}

// statesAt are the apps and their statuses at an instant.
func statesAt(t *testing.T, js jetstream.JetStream, instant time.Time, reader appwatch.Options) (string, error) {
	t.Helper()
	r := start(t, js, watch.Options{Reader: reader, At: instant, Form: watch.JSON, Timeout: suite.Patience})
	err := r.end()
	var list appview.List
	if text := r.out.String(); text != "" {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
	}
	var words []string
	for _, a := range list.Apps {
		words = append(words, a.App+" "+a.Status)
	}
	return strings.Join(words, ", "), err
}

// At each instant the apps are what the events up to then made of them: also where retention has
// removed the events before, and those between are enough.
func TestAt(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	steps := history()
	times := p.stored(steps)
	js := dial(t, s.ClientURL())
	at := func(t *testing.T, instant time.Time, reader appwatch.Options) (string, error) {
		t.Helper()
		return statesAt(t, js, instant, reader)
	}
	want := []string{
		"search PENDING", "cart ACTIVE, search PENDING", "dashboard ACTIVE, cart ACTIVE, search PENDING",
		"dashboard ACTIVE, cart ACTIVE, search ACTIVE", "cart ACTIVE, search ACTIVE", "cart STOPPED, search ACTIVE",
	}
	for i, instant := range times {
		if got, err := at(t, instant, appwatch.Options{}); err != nil || got != want[i] {
			t.Errorf("after event %d: got %q, %v; want %q", i+1, got, err, want[i])
		}
	}
	if got, err := at(t, times[0].Add(-time.Nanosecond), appwatch.Options{}); err != nil || got != "" {
		t.Errorf("before the first event: got %q, %v", got, err)
	}
	if got, err := at(t, times[4], appwatch.Options{Project: "shop", Domain: "production", App: "cart"}); err != nil || got != "cart ACTIVE" {
		t.Errorf("one app: got %q, %v", got, err)
	}
	if got, err := at(t, times[4], appwatch.Options{Statuses: []string{"STOPPED"}}); err != nil || got != "" {
		t.Errorf("by status: got %q, %v", got, err)
	}
	if _, err := at(t, times[0], searchOnly); err != nil {
		t.Errorf("got %v", err)
	}
	if _, err := at(t, times[0], appwatch.Options{Project: "shop", Domain: "production", App: "cart"}); !errors.Is(err, watch.ErrGone) {
		t.Errorf("an app that did not exist yet: got %v", err)
	}

	stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), purgeBelow(4)); err != nil {
		t.Fatal(err)
	}
	for i, instant := range times {
		got, err := at(t, instant, appwatch.Options{})
		if i < 3 {
			if !errors.Is(err, watch.ErrRemoved) {
				t.Errorf("event %d was removed: got %q, %v", i+1, got, err)
			}
		} else if err != nil || got != want[i] {
			t.Errorf("after event %d, with those before 4 removed: got %q, %v; want %q", i+1, got, err, want[i])
		}
	}
}

// central is a stream that has the event stream, and one with noise, as its sources.
type central struct {
	p     *publisher
	count uint64 // messages that it has to have
}

func newCentral(p *publisher) *central {
	p.tb.Helper()
	for _, cfg := range []jetstream.StreamConfig{
		{Name: "NOISE", Subjects: []string{"noise.>"}},
		{Name: "CENTRAL", Sources: []*jetstream.StreamSource{{Name: "NOISE"}, {Name: subjects.DefaultStream}}},
	} {
		if _, err := p.js.CreateStream(p.tb.Context(), cfg); err != nil {
			p.tb.Fatal(err)
		}
	}
	return &central{p: p}
}

// stream waits until every message is there.
func (c *central) stream() jetstream.Stream {
	c.p.tb.Helper()
	var stream jetstream.Stream
	suite.Eventually(c.p.tb, suite.Patience, "the copy", func() (err error) {
		if stream, err = c.p.js.Stream(c.p.tb.Context(), "CENTRAL"); err == nil && stream.CachedInfo().State.LastSeq < c.count {
			err = fmt.Errorf("it has %d of %d messages", stream.CachedInfo().State.LastSeq, c.count)
		}
		return err
	})
	return stream
}

func (c *central) noise() {
	c.p.tb.Helper()
	if _, err := c.p.js.Publish(c.p.tb.Context(), "noise.a", nil); err != nil {
		c.p.tb.Fatal(err)
	}
	c.count++
	c.stream()
}

// A stream with sources has other sequences than its origin: an event of the same app may have the
// one that an event names as its predecessor.
func TestAtInAStreamWithSources(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	c := newCentral(p)
	c.noise()
	c.noise()
	var times []time.Time
	statuses := []string{"PENDING", "ACTIVE", "FAILED", "STOPPED", "ACTIVE", "PENDING"}
	for i, status := range statuses {
		kind := subjects.Updated
		if i == 0 {
			kind = subjects.Created
		}
		p.publish(step{app: search, kind: kind, status: status, generation: 1})
		c.count++
		msg, err := c.stream().GetMsg(t.Context(), c.count)
		if err != nil {
			t.Fatal(err)
		}
		times = append(times, msg.Time)
		if i > 2 {
			c.noise()
		}
	}
	for i, instant := range times {
		if got, err := statesAt(t, p.js, instant, appwatch.Options{Stream: "CENTRAL"}); err != nil || got != "search "+statuses[i] {
			t.Errorf("after event %d: got %q, %v; want %s", i+1, got, err, statuses[i])
		}
	}
	if got, err := statesAt(t, p.js, times[0].Add(-1), appwatch.Options{Stream: "CENTRAL"}); got != "" || err != nil && !errors.Is(err, watch.ErrRemoved) {
		t.Errorf("before the first event: got %q, %v", got, err)
	}
}

// Newest states alone are not enough: the first event behind the instant counts.
func TestAtWithLatest(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	steps := []step{{app: search, kind: subjects.Created, status: "PENDING", generation: 1}}
	for range 200 {
		steps = append(steps, step{app: search, kind: subjects.Updated, status: "ACTIVE", generation: 1})
	}
	times := p.stored(steps)
	if got, err := statesAt(t, p.js, times[0], appwatch.Options{Latest: true}); err != nil || got != "search PENDING" {
		t.Errorf("got %q, %v", got, err)
	}
}

// An event that was removed, and may have been stored behind the instant, leaves the state open.
func TestAtWithoutAnEvent(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	status := func(status string) step {
		return step{app: search, kind: subjects.Updated, status: status, generation: 1}
	}
	times := p.stored(append(history(), status("FAILED"), status("PENDING")))
	stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	for _, removed := range []uint64{7, 8} {
		if err := stream.DeleteMsg(t.Context(), removed); err != nil {
			t.Fatal(err)
		}
		if got, err := statesAt(t, p.js, times[5], appwatch.Options{}); !errors.Is(err, watch.ErrRemoved) || got != "" || !strings.Contains(err.Error(), search) || strings.Contains(err.Error(), "cart") {
			t.Errorf("without event %d: got %q, %v", removed, got, err)
		}
	}
	if got, err := statesAt(t, p.js, times[7], appwatch.Options{}); err != nil || got != "cart STOPPED, search PENDING" {
		t.Errorf("behind the last event: got %q, %v", got, err)
	}
	if got, err := statesAt(t, p.js, times[4], appwatch.Options{Project: "shop", Domain: "production", App: "cart"}); err != nil || got != "cart ACTIVE" {
		t.Errorf("another app: got %q, %v", got, err)
	}
	// Events from before the instant are not needed.
	if err := stream.DeleteMsg(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got, err := statesAt(t, p.js, times[4], appwatch.Options{Project: "shop", Domain: "production", App: "cart", HeadersOnly: true}); err != nil || got != "cart ACTIVE" {
		t.Errorf("an event before the instant was removed: got %q, %v", got, err)
	}
}

// The delete of an app was removed by hand: the app may have been there at the instant.
func TestAtWithoutADelete(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	first, _ := deployed()
	const cart = "shop/production/cart"
	times := p.stored(join(first,
		step{app: cart, kind: subjects.Created, status: "ACTIVE", generation: 1, version: 13},
		step{app: search, kind: subjects.Deleted, generation: 1, version: 14},
		step{app: cart, kind: subjects.Updated, status: "STOPPED", generation: 1, version: 15},
	))
	stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if got, err := statesAt(t, p.js, times[2], appwatch.Options{}); !errors.Is(err, watch.ErrRemoved) || got != "" {
		t.Errorf("got %q, %v", got, err)
	}
}

// A server that does not answer is a timeout in every phase.
func TestAtTimesOut(t *testing.T) {
	t.Parallel()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	times := p.stored(history())
	if err := s.GlobalAccount().AddMapping("$JS.API.STREAM.MSG.GET."+subjects.DefaultStream, "unanswered.get"); err != nil {
		t.Fatal(err)
	}
	if _, err := p.js.Conn().SubscribeSync("unanswered.>"); err != nil {
		t.Fatal(err)
	}
	if err := p.js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	r := start(t, dial(t, s.ClientURL()), watch.Options{At: times[3], Timeout: 2 * time.Second})
	if err := r.end(); !errors.Is(err, watch.ErrTimeout) || r.out.String() != "" {
		t.Errorf("got %v and %q", err, r.out)
	}
}

// allowDirect has every member of the stream's group answer requests for single messages.
func (p *publisher) allowDirect() {
	p.tb.Helper()
	stream, err := p.js.Stream(p.tb.Context(), subjects.DefaultStream)
	if err != nil {
		p.tb.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.AllowDirect = true
	if _, err := p.js.UpdateStream(p.tb.Context(), cfg); err != nil {
		p.tb.Fatal(err)
	}
}

// A user that may not read single messages gets an error that names the subject.
func TestAtDenied(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), Users: []*server.User{
		{Username: "bridge", Password: "bridge"},
		{Username: "operator", Password: "operator", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.API.STREAM.MSG.GET." + subjects.DefaultStream}}}},
	}})
	as := func(user string) string { return strings.Replace(s.ClientURL(), "://", "://"+user+":"+user+"@", 1) }
	p := newPublisher(t, as("bridge"))
	times := p.stored(history())
	nc, err := nats.Connect(as("operator"), nats.Timeout(suite.Patience), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, js, watch.Options{At: times[3], Timeout: suite.Patience})
	if err := r.end(); !errors.Is(err, appwatch.ErrDenied) || !strings.Contains(err.Error(), "$JS.API.STREAM.MSG.GET."+subjects.DefaultStream) || r.out.String() != "" {
		t.Errorf("got %v and %q", err, r.out)
	}
}
