package watch_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/watch"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// A mirror in the same account answers requests for single messages that go to any member of the
// stream's group, and has only some of the events. What it lacks is no event that was removed.
func TestMirrorAnswers(t *testing.T) {
	t.Parallel()
	first, second := deployed()
	s := jetStream(t)
	p := newPublisher(t, s.ClientURL())
	p.allowDirect()
	if _, err := p.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "MIRROR", Mirror: &jetstream.StreamSource{Name: subjects.DefaultStream, FilterSubject: "flyte.apps.events.other.>"},
	}); err != nil {
		t.Fatal(err)
	}
	p.publish(step{app: "other/production/x", kind: subjects.Created, generation: 1})
	stream, err := p.js.Stream(t.Context(), subjects.DefaultStream)
	if err != nil {
		t.Fatal(err)
	}
	created := p.publish(first[0])
	suite.Eventually(t, suite.Patience, "the mirror answers", func() error {
		if _, err := stream.GetMsg(t.Context(), created); !errors.Is(err, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})
	for _, step := range join(first[1:], second[0]) {
		p.publish(step)
	}
	js := dial(t, s.ClientURL())
	var active time.Time
	for active.IsZero() {
		if m, err := stream.GetMsg(t.Context(), created+2); err == nil {
			active = m.Time
		}
	}
	var runs []*running
	for range 10 {
		if got, err := statesAt(t, js, active, appwatch.Options{Project: "shop"}); err != nil || got != "search ACTIVE" {
			t.Errorf("at: got %q, %v", got, err)
		}
		r := start(t, js, watch.Options{Reader: searchOnly, Until: &watch.Until{Status: "ACTIVE", Generation: 2}, Timeout: 5 * time.Minute})
		ready(t, r, true)
		runs = append(runs, r)
	}
	p.publish(second[1])
	for _, r := range runs {
		r.prints(eventText(second[1]))
		r.goesOn("a step")
	}
	p.publish(second[2])
	for _, r := range runs {
		if err := r.end(); err != nil {
			t.Errorf("got %v", err)
		}
	}
}
