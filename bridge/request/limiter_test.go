package request

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/appbridge/appbridge/subjects"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// holder is a claim that releases its slot when it is revoked.
type holder struct {
	slot    *Slot
	revoked atomic.Bool
}

func take(t *testing.T, l *Limiter, project string, units int) *holder {
	t.Helper()
	h, err := try(t.Context(), l, project, units)
	if err != nil {
		t.Fatalf("Acquire(%s, %d): %v", project, units, err)
	}
	return h
}

func try(ctx context.Context, l *Limiter, project string, units int) (*holder, error) {
	h := &holder{}
	granted := make(chan struct{})
	var err error
	h.slot, err = l.Acquire(ctx, Claim{Project: project, Units: units, Revoke: func(error) {
		h.revoked.Store(true)
		go func() {
			<-granted
			h.slot.Release()
		}()
	}})
	if err == nil {
		close(granted)
	}
	return h, err
}

func refused(t *testing.T, err error, want string) {
	t.Helper()
	var failure *Error
	if !errors.As(err, &failure) || failure.Code != subjects.CodeResourceExhausted || !strings.Contains(failure.Text, want) {
		t.Fatalf("got %v, want a 429 with %q", err, want)
	}
}

func logLimit(most, pending int) *Limiter {
	return NewLimiter(Limit{Option: "max-log-streams", What: "log requests", Max: most, PendingOption: "max-pending", Pending: pending})
}

func TestAloneAProjectTakesAll(t *testing.T) {
	l := logLimit(4, 0)
	var held []*holder
	for range 4 {
		held = append(held, take(t, l, "a", 1))
	}
	_, err := try(t.Context(), l, "a", 1)
	refused(t, err, "max-log-streams: 4 of 4 log requests are taken, try again later")
	for _, h := range held {
		h.slot.Release()
		h.slot.Release() // the second call does nothing
	}
	if got, want := l.Usage(), (Usage{Max: 4}); got != want {
		t.Errorf("Usage() = %+v, want %+v", got, want)
	}
	if len(l.projects) != 0 {
		t.Errorf("%d projects are remembered, want 0", len(l.projects))
	}
}

func TestHalfWhileOthersHaveClaims(t *testing.T) {
	l := logLimit(5, 0)
	take(t, l, "b", 1)
	for range 3 {
		take(t, l, "a", 1)
	}
	_, err := try(t.Context(), l, "a", 1)
	refused(t, err, `max-log-streams: project "a" has 3 of 5 log requests, at most 3 while other projects have requests`)
	take(t, l, "b", 1)
}

func TestNewestOfTheLargestIsRevoked(t *testing.T) {
	l := logLimit(4, 0)
	var held []*holder
	for range 4 {
		held = append(held, take(t, l, "a", 1))
	}
	take(t, l, "b", 1)
	take(t, l, "b", 1)
	if got := []bool{held[0].revoked.Load(), held[1].revoked.Load(), held[2].revoked.Load(), held[3].revoked.Load()}; !slices.Equal(got, []bool{false, false, true, true}) {
		t.Errorf("revoked %v, want the two newest", got)
	}
	_, err := try(t.Context(), l, "b", 1)
	refused(t, err, "4 of 4 log requests are taken")
}

// Two projects with half of the limit each leave a third its fair share.
func TestFairShareOfAThird(t *testing.T) {
	l := logLimit(6, 0)
	for range 3 {
		take(t, l, "a", 1)
		take(t, l, "b", 1)
	}
	take(t, l, "c", 1)
	take(t, l, "c", 1)
	_, err := try(t.Context(), l, "c", 1)
	refused(t, err, "6 of 6")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range []string{"a", "b", "c"} {
		if got := l.projects[name].held; got != 2 {
			t.Errorf("project %s holds %d, want 2", name, got)
		}
	}
}

// A claim for several units that were revoked one by one is not overtaken by smaller ones.
func TestManyUnitsAreNotOvertaken(t *testing.T) {
	l := logLimit(4, 0)
	var mu sync.Mutex
	var ended []*Slot
	for range 4 {
		var slot *Slot
		slot, err := l.Acquire(t.Context(), Claim{Project: "a", Units: 1, Revoke: func(error) {
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, slot)
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(context.WithoutCancel(t.Context()), Claim{Project: "b", Units: 2})
		got <- err
	}()
	poll(func() bool { mu.Lock(); defer mu.Unlock(); return len(ended) == 2 })
	ended[0].Release()
	_, err := try(t.Context(), l, "c", 1)
	refused(t, err, "3 of 4")
	ended[1].Release()
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// poll waits for a condition that other goroutines bring about; the test's own limit ends it.
func poll(done func() bool) {
	for !done() {
		ready := make(chan struct{})
		go close(ready)
		<-ready
	}
}

func TestPendingIsShared(t *testing.T) {
	l := logLimit(1, 4)
	busy := take(t, l, "a", 1)
	results := make(chan string, 8)
	var running sync.WaitGroup
	wait := func(project string) {
		want := l.Usage().Pending + 1
		running.Go(func() {
			slot, err := l.Acquire(context.WithoutCancel(t.Context()), Claim{Project: project, Units: 1})
			if err != nil {
				results <- fmt.Sprintf("%s refused: %v", project, err)
				return
			}
			results <- project
			slot.Release()
		})
		poll(func() bool { return l.Usage().Pending >= min(want, 4) })
	}
	for range 4 {
		wait("a")
	}
	wait("b") // takes the place of the newest of a
	if got, want := <-results, `a refused: max-pending: 4 log requests are waiting, 3 of project "a", at most 4 in all, try again later`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	busy.slot.Release()
	running.Wait()
	close(results)
	got := map[string]int{}
	for result := range results {
		got[result]++
	}
	if got["a"] != 3 || got["b"] != 1 || len(got) != 2 {
		t.Errorf("served %v, want 3 of a and 1 of b", got)
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	l := logLimit(1, 10)
	busy := take(t, l, "a", 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	got := make(chan error, 1)
	go func() {
		_, err := l.Acquire(ctx, Claim{Project: "a", Units: 1})
		got <- err
	}()
	poll(func() bool { return l.Usage().Pending == 1 })
	gone := errors.New("gone")
	cancel(gone)
	if err := <-got; !errors.Is(err, gone) {
		t.Errorf("got %v, want %v", err, gone)
	}
	if _, err := l.Acquire(ctx, Claim{Project: "a", Units: 1}); !errors.Is(err, gone) {
		t.Errorf("got %v for a context that is done, want %v", err, gone)
	}
	busy.slot.Release()
	if got, want := l.Usage(), (Usage{Max: 1}); got != want {
		t.Errorf("Usage() = %+v, want %+v", got, want)
	}
}

// Many projects take, lose and release at once: never more than the limit is held, no
// claim waits for ever, and everything comes back.
func TestManyAtOnce(t *testing.T) {
	for _, pending := range []int{0, 8} {
		l := logLimit(7, pending)
		var held atomic.Int64
		var running sync.WaitGroup
		for worker := range 12 {
			running.Go(func() {
				random := rand.New(rand.NewPCG(uint64(worker), 1))
				for range 2000 {
					units := 1 + random.IntN(3)
					ctx, cancel := context.WithCancelCause(context.Background())
					claim := Claim{Project: fmt.Sprint(worker % 4), Units: units}
					if random.IntN(2) == 0 {
						claim.Revoke = cancel
					}
					if random.IntN(8) == 0 {
						go cancel(context.Canceled)
					}
					slot, err := l.Acquire(ctx, claim)
					if err == nil {
						if now := held.Add(int64(units)); now > 7 {
							t.Errorf("%d units are held, want at most 7", now)
						}
						if random.IntN(3) == 0 {
							poll(func() bool { return random.IntN(4) == 0 || ctx.Err() != nil })
						}
						held.Add(int64(-units))
						slot.Release()
					}
					cancel(nil)
				}
			})
		}
		running.Wait()
		if got, want := l.Usage(), (Usage{Max: 7}); got != want || l.revoked != 0 || l.owed != 0 || len(l.projects) != 0 {
			t.Errorf("pending %d: Usage() = %+v, coming %d, owed %d, %d projects, want nothing", pending, got, l.revoked, l.owed, len(l.projects))
		}
	}
}

func TestReturnOfSomeUnits(t *testing.T) {
	t.Parallel()
	l := logLimit(4, 0)
	h := take(t, l, "a", 4)
	h.slot.Return(1)
	h.slot.Return(2)
	if got, want := l.Usage().Active, 1; got != want {
		t.Errorf("got %d units held, want %d", got, want)
	}
	h.slot.Return(5)
	h.slot.Release()
	if got := l.Usage().Active; got != 0 || len(l.projects) != 0 {
		t.Errorf("got %d units held, %d projects", got, len(l.projects))
	}
}

// Projects whose claims come one at a time, each as soon as the one before is served, do
// not overtake a project with many claims.
func TestWaitingProjectsTakeTurns(t *testing.T) {
	l := logLimit(1, 100)
	turns := map[string]*Turn{}
	enter := func(project string) *Turn {
		turn, err := l.Enter(Claim{Project: project, Units: 1})
		if err != nil {
			t.Fatal(err)
		}
		return turn
	}
	served := map[string]int{}
	serve := func(project string, turn *Turn) bool {
		select {
		case <-turn.done:
			served[project]++
			turn.slot.Release()
			return true
		default:
			return false
		}
	}
	busy := enter("a")
	many := []*Turn{enter("many"), enter("many"), enter("many")}
	turns["a"], turns["b"] = busy, enter("b")
	for range 30 {
		for _, project := range []string{"a", "b"} {
			if serve(project, turns[project]) {
				turns[project] = enter(project)
			}
		}
		if serve("many", many[0]) {
			many = append(many[1:], enter("many"))
		}
	}
	if min(served["a"], served["b"], served["many"]) < 5 {
		t.Errorf("served %v, want turns", served)
	}
}
