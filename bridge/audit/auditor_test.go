package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// patience bounds every wait. Nothing is expected to come near it.
const patience = 5 * time.Minute

// script is a Part that shows what a test wants, look after look.
type script struct {
	mu       sync.Mutex
	inactive bool
	suspects []string
	looks    []Looked // the last one stays
	err      error
	looked   [][]string
	repaired [][]Difference
	repair   func(*script)
}

func (s *script) Active() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.inactive
}

func (s *script) Screen(context.Context, *Pace) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.suspects), s.err
}

func (s *script) Look(_ context.Context, subjects []string) (Looked, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = append(s.looked, subjects)
	l := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	return l, nil
}

func (s *script) Repair(_ context.Context, findings []Difference) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repaired = append(s.repaired, findings)
	if s.repair != nil {
		s.repair(s)
	}
	return nil
}

// count is the value of a counter.
func count(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

func wrong(subject, detail string) Looked {
	return Looked{Findings: []Difference{{Key: subject, Kind: "broken", Side: plan.SideBucket, Detail: detail}}}
}

func changing() Looked { return Looked{Changing: map[string]bool{"a": true}} }

func newTestAuditor(t *testing.T, parts ...Part) (*Auditor, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.DebugLevel)
	var a *Auditor
	m := NewMetrics(prometheus.NewRegistry(), func() *Auditor { return a })
	a = New(Config{Interval: time.Hour, Between: time.Millisecond, Parts: parts, Log: zap.New(core), Metrics: m})
	return a, logs
}

// Two looks in a row have to agree; what is under way is no difference.
func TestConfirm(t *testing.T) {
	for _, test := range []struct {
		name  string
		looks []Looked
		found bool
	}{
		{"right at once", []Looked{{}}, false},
		{"wrong, then right", []Looked{wrong("a", "x"), {}}, false},
		{"wrong twice", []Looked{wrong("a", "x"), wrong("a", "x")}, true},
		{"wrong in another way, then right", []Looked{wrong("a", "x"), wrong("a", "y"), {}}, false},
		{"wrong in another way, then the same", []Looked{wrong("a", "x"), wrong("a", "y"), wrong("a", "y")}, true},
		{"wrong, under way, right", []Looked{wrong("a", "x"), changing(), {}}, false},
		{"the look between was under way", []Looked{wrong("a", "x"), changing(), wrong("a", "x"), {}}, false},
		{"under way, then wrong twice", []Looked{changing(), wrong("a", "x"), wrong("a", "x")}, true},
		{"under way all the time", []Looked{changing()}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			part := &script{suspects: []string{"a"}, looks: test.looks}
			a, logs := newTestAuditor(t, part)
			if err := a.recheck(t.Context(), 0, part.suspects); err != nil {
				t.Fatal(err)
			}
			n, first := a.Unrepaired()
			if got := n == 1 && first.Subject() == "a"; got != test.found {
				t.Errorf("found: %t, want %t", got, test.found)
			}
			if got := logs.FilterMessage(logFound).Len() == 1; got != test.found {
				t.Errorf("logged: %t, want %t", got, test.found)
			}
			if got := count(t, a.cfg.Metrics.findings.WithLabelValues("broken", "bucket")) == 1; got != test.found {
				t.Errorf("counted: %t, want %t", got, test.found)
			}
		})
	}
}

// What keeps changing is looked at so many times and no more.
func TestConfirmEnds(t *testing.T) {
	part := &script{suspects: []string{"a"}}
	for i := range 2 * maxLooks {
		part.looks = append(part.looks, wrong("a", fmt.Sprint(i)))
	}
	a, _ := newTestAuditor(t, part)
	if err := a.recheck(t.Context(), 0, part.suspects); err != nil {
		t.Fatal(err)
	}
	if n, _ := a.Unrepaired(); n != 0 || len(part.looked) != maxLooks {
		t.Errorf("%d findings after %d looks", n, len(part.looked))
	}
}

// A finding is repaired, reported once, and open until a look finds it right. One that is not ours
// to repair is reported alone.
func TestFindAndMend(t *testing.T) {
	part := &script{suspects: []string{"a", "f"}}
	both := wrong("a", "x")
	both.Findings = append(both.Findings, Difference{Key: "f", Kind: DifferenceForeignKey, Side: plan.SideBucket})
	foreign := Looked{Findings: both.Findings[1:]}
	part.looks = []Looked{both, both, both, changing(), foreign}
	a, logs := newTestAuditor(t, part)
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := logs.FilterMessage(logFound).Len(); got != 2 {
		t.Errorf("%d findings, want 2", got)
	}
	if len(part.repaired) != 1 || len(part.repaired[0]) != 1 || part.repaired[0][0].Subject() != "a" {
		t.Errorf("repaired %v, want a once", part.repaired)
	}
	if got := logs.FilterMessage(logRepaired).Len(); got != 1 {
		t.Errorf("%d repairs, want 1", got)
	}
	if n, _ := a.Unrepaired(); n != 0 {
		t.Errorf("%d are not repaired", n)
	}
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := logs.FilterMessage(logFound).Len(); got != 2 {
		t.Errorf("a foreign key is reported %d times", got-1)
	}
	if got := count(t, a.cfg.Metrics.rounds.WithLabelValues(resultComplete)); got != 2 {
		t.Errorf("%v complete rounds, want 2", got)
	}
}

// A part that is not active is not audited, and what was found of it does not count.
func TestInactive(t *testing.T) {
	part := &script{suspects: []string{"a"}, looks: []Looked{wrong("a", "x")}}
	a, _ := newTestAuditor(t, part)
	part.repair = func(s *script) { s.inactive = true }
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := a.Unrepaired(); n != 0 {
		t.Errorf("%d findings of an inactive part count", n)
	}
	looks := len(part.looked)
	if err := a.round(t.Context()); err != nil || len(part.looked) != looks {
		t.Errorf("%v, %d looks at an inactive part", err, len(part.looked)-looks)
	}
	part.inactive = false
	if n, _ := a.Unrepaired(); n != 1 {
		t.Errorf("%d findings, want the one that was open", n)
	}
	part.looks = []Looked{{}}
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, _ := a.Unrepaired(); n != 0 {
		t.Errorf("%d findings, want none", n)
	}
}

// A round that fails is no complete one.
func TestInterrupted(t *testing.T) {
	part := &script{err: errors.New("NATS is disconnected")}
	a, _ := newTestAuditor(t, part)
	before := a.lastComplete()
	if err := a.round(t.Context()); !errors.Is(err, part.err) {
		t.Errorf("got %v", err)
	}
	if got := count(t, a.cfg.Metrics.rounds.WithLabelValues(resultInterrupted)); got != 1 || !a.lastComplete().Equal(before) {
		t.Errorf("%v interrupted rounds", got)
	}
}

// LookNow brings a round long before the interval is over, and Run ends with its context.
func TestRun(t *testing.T) {
	part := &script{suspects: []string{"a"}, looks: []Looked{{}}}
	a, _ := newTestAuditor(t, part)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	a.LookNow("a test")
	a.LookNow("a test")
	for limit := time.After(patience); count(t, a.cfg.Metrics.rounds.WithLabelValues(resultComplete)) == 0; {
		select {
		case <-limit:
			t.Fatal("no round")
		case <-time.After(time.Millisecond):
		}
	}
	cancel()
	<-done
}

func TestPace(t *testing.T) {
	p := newPace(time.Hour, func() bool { return false })
	p.began = time.Now().Add(-time.Second)
	p.budget = time.Millisecond
	began := time.Now()
	if err := p.Step(t.Context()); err != nil || time.Since(began) < time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(began))
	}
	if p.budget != 0 || p.worked < time.Second {
		t.Errorf("budget %s, worked %s", p.budget, p.worked)
	}
	p = newPace(time.Hour, func() bool { return true })
	p.began = time.Now().Add(-time.Second)
	if err := p.Step(t.Context()); err != nil || p.budget != time.Hour {
		t.Errorf("%v, it pauses although somebody waits", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := new(Pace).Step(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := new(Pace).Step(t.Context()); err != nil {
		t.Error(err)
	}
}

// What one part cannot show at present does not keep the others from being audited.
func TestPartsDoNotHinderEachOther(t *testing.T) {
	down := &script{err: errors.New("Kubernetes is unavailable")}
	part := &script{suspects: []string{"a"}, looks: []Looked{wrong("a", "x")}}
	a, logs := newTestAuditor(t, down, part)
	if err := a.round(t.Context()); !errors.Is(err, down.err) {
		t.Errorf("got %v", err)
	}
	if got := logs.FilterMessage(logFound).Len(); got != 1 || len(part.repaired) == 0 {
		t.Errorf("%d findings, %d repairs, want the one of the part that can be audited", got, len(part.repaired))
	}
}

// Somebody who asks for a round all the time, as the guard does while another writes to the bucket,
// does not get one after the other.
func TestLookNowRests(t *testing.T) {
	part := &script{looks: []Looked{{}}}
	a, _ := newTestAuditor(t, part)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Run(ctx)
	}()
	const asked = 50
	began, limit := time.Now(), time.After(patience)
	for range asked {
		a.LookNow("another client wrote to the bucket")
		for len(a.now) > 0 { // until it is heard
			select {
			case <-time.After(100 * time.Microsecond):
			case <-limit:
				t.Fatal("nobody listens")
			}
		}
	}
	cancel()
	<-done
	most := 1 + int(time.Since(began)/leastRest)
	if got := int(count(t, a.cfg.Metrics.rounds.WithLabelValues(resultComplete))); got < 1 || got > most {
		t.Errorf("%d rounds for %d requests, want %d at most", got, asked, most)
	}
}

// A finding of which nobody knows whether it is still there is looked at before it is repaired: the
// repair may end a session that is fine.
func TestMendLooksFirst(t *testing.T) {
	part := &script{suspects: []string{"a"}, looks: []Looked{wrong("a", "x")}}
	a, _ := newTestAuditor(t, part)
	part.repair = func(s *script) { s.inactive = true } // the session ends
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	repaired := len(part.repaired)
	// The next one takes a while to come to life, and has repaired it.
	part.inactive, part.suspects, part.looks = false, nil, []Looked{changing(), {}}
	for _, f := range a.open[0] {
		f.repair = time.Now().Add(-time.Second)
	}
	a.repair(t.Context(), 0, 1)
	if n, _ := a.Unrepaired(); n != 0 || len(part.repaired) != repaired {
		t.Errorf("%d open findings, repaired %d times more", n, len(part.repaired)-repaired)
	}
}

// A repair does not wait for another suspect that keeps changing, and a round follows soon.
func TestRepairDoesNotWait(t *testing.T) {
	part := &script{suspects: []string{"a", "busy"}}
	for i := range 2 * maxLooks {
		l := wrong("a", "x")
		l.Findings = append(l.Findings, wrong("busy", fmt.Sprint(i)).Findings...)
		part.looks = append(part.looks, l)
	}
	looks := 0
	part.repair = func(s *script) {
		if looks == 0 {
			looks = len(s.looked)
		}
	}
	a, _ := newTestAuditor(t, part)
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	if looks == 0 || looks > 2+looksOnceFound+1 {
		t.Errorf("the first repair came after %d looks", looks)
	}
	if a.fresh != 1 {
		t.Errorf("%d new findings", a.fresh)
	}
}
