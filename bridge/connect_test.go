package bridge

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// waits are timers that end when a test calls over.
type waits []func()

func (w *waits) after(_ time.Duration, do func()) (stop func() bool) {
	*w = append(*w, do)
	return func() bool { return true }
}

func (w *waits) over() {
	for _, do := range *w {
		do()
	}
	*w = nil
}

func rolledOut(version string, replicas int32) *kservice.Revision {
	rev := testRevision(version, replicas)
	rev.Name = "rev-2"
	return rev
}

// rollout is a version of testService that names a Revision.
func rollout(v, revision string) *kservice.Service {
	svc := apptest.Service("u1", v, "True")
	svc.Status.LatestReadyRevisionName = revision
	return svc
}

// countIn is a change with the count that its event shows and where that is from.
func countIn(t *testing.T, c *app.Change) string {
	t.Helper()
	switch {
	case c.Remove && c.FinalStateUnknown:
		return "lost"
	case c.Remove:
		return "gone"
	}
	ev, err := testEncoder().Encode(testID, c, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%s x%d", ev.Record.ResourceVersion, ev.Record.App.Replicas())
	if ev.Record.Revision != "" {
		text += fmt.Sprintf(" of %s@%s", ev.Msg.Header.Get(subjects.HeaderRevision), ev.Msg.Header.Get(subjects.HeaderRevisionResourceVersion))
	}
	if !c.Mergeable {
		text = "new " + text
	}
	return text
}

// A bridge that starts in the middle of a rollout goes by the last count that was published.
func TestStandInAtStart(t *testing.T) {
	unready := rolledOut("15", 0)
	unready.Status.NotReady = true
	one := app.State{Service: encodertest.Keep(rollout("10", "rev-1")), Revision: testRevision("9", 3)}
	before := app.State{Service: encodertest.Keep(rollout("21", "rev-2")), Revision: testRevision("9", 3)}
	zero := app.State{Service: encodertest.Keep(rollout("21", "rev-2"))}
	for _, test := range []struct {
		name      string
		published app.State
		revision  *kservice.Revision // known at the start
		over      bool               // the time was over before
		want      []string
		after     []string // the time is over after that
		known     []string // or rev-2 is known with 3 replicas
	}{
		{"published before the rollout", one, nil, false, []string{"21 x3 of rev-1@9"}, []string{"21 x0"}, nil},
		{"published in it", before, nil, false, nil, []string{"21 x0"}, nil},
		{"published in it, not ready", before, unready, false, nil, []string{"21 x0 of rev-2@15"}, nil},
		{"published in it, known", before, rolledOut("20", 3), false, nil, nil, nil},
		{"published in it, known with another count", before, rolledOut("20", 2), false, []string{"21 x2 of rev-2@20"}, nil, []string{"21 x3 of rev-2@30"}},
		{"published after its time", zero, nil, false, nil, nil, []string{"21 x3 of rev-2@30"}},
		{"started long before", one, nil, true, []string{"21 x0"}, nil, []string{"21 x3 of rev-2@30"}},
	} {
		for _, arrives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, arrives %t", test.name, arrives), func(t *testing.T) {
				m := testMetrics()
				s := watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject)
				var clock waits
				s.SetAfter(clock.after)
				services, revisions := s.Services(), s.Revisions()
				if test.revision != nil {
					revisions.OnAdd(test.revision, true)
				}
				services.OnAdd(rollout("21", "rev-2"), true)
				if test.over {
					clock.over()
				}
				q := newTestQueue(1 << 20)
				connect(s, q, nil, map[subjects.AppID]*app.Record{testID: publishedAs(t, test.published)}, nil, nil,
					func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
				want := test.want
				if arrives {
					want = append(slices.Clone(want), test.known...)
					revisions.OnAdd(rolledOut("30", 3), false)
				} else {
					want = append(slices.Clone(want), test.after...)
				}
				clock.over()
				var got []string
				for _, c := range q.Pending(nil)[testID].Changes {
					got = append(got, countIn(t, c))
				}
				if !slices.Equal(got, want) {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		}
	}
}

// A new session goes on with the changes of the one before, also at a rollout.
func TestStandInIsCarried(t *testing.T) {
	m := testMetrics()
	s := watch.NewSource(zap.NewNop(), encodertest.Keeper, m.reject)
	s.SetAfter(new(waits).after)
	services, revisions := s.Services(), s.Revisions()
	revisions.OnAdd(testRevision("9", 3), true)
	services.OnAdd(rollout("10", "rev-1"), true)
	before := newTestQueue(1 << 20)
	r := publishedAs(t, app.State{Service: encodertest.Keep(rollout("10", "rev-1")), Revision: testRevision("9", 3)})
	before.Load(testID, r)
	s.Connect(func(watch.View) watch.Sink { return before.Add }, nil)
	services.OnUpdate(nil, rollout("21", "rev-2"))
	services.OnUpdate(nil, rollout("22", "rev-2"))
	q := newTestQueue(1 << 20)
	differences, carried, _ := connect(s, q, before, map[subjects.AppID]*app.Record{testID: r}, nil, nil,
		func(string) bool { return true }, func() func() { return func() {} }, func(error) {})
	if differences != 0 || carried != 2 {
		t.Errorf("%d differences and %d changes carried, want 2 carried", differences, carried)
	}
}
