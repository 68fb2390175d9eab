package appsvc_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// again asks until there is an answer, and tells how often it asked. An answer that
// says to ask again counts as none.
func (s *site) again(nc *nats.Conn, op subjects.APIOp, id subjects.AppID, body proto.Message) (*siteAnswer, int, error) {
	subject, err := s.names.API(op, id)
	if err != nil {
		return nil, 0, err
	}
	deadline := time.Now().Add(patience)
	for n := 1; ; n++ {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		a, err := s.ask(ctx, nc, subject, body)
		cancel()
		switch {
		case err == nil && a.code == 0:
			return a, n, nil
		case err == nil && !a.late():
			return a, n, fmt.Errorf("%s %s: %w", op, id, a.err())
		case time.Now().After(deadline):
			return a, n, errors.Join(fmt.Errorf("%s %s", op, id), err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-s.t.Context().Done():
			return nil, n, s.t.Context().Err()
		}
	}
}

// writers deploy one version of an app after the other, each until it is answered,
// until done is closed. It tells how many answers there were and how many requests.
type writers struct {
	errgroup.Group
	done              chan struct{}
	answers, requests atomic.Int64
	repeats           atomic.Int64 // requests that had to be sent again
	last              []int        // version that was answered, by writer
}

func (s *site) writers(n int) *writers {
	s.t.Helper()
	w := &writers{done: make(chan struct{}), last: make([]int, n)}
	for i := range n {
		nc, id := s.dial(), s.id("app-"+strconv.Itoa(i))
		w.Go(func() error {
			for version := 1; ; version++ {
				a, requests, err := s.again(nc, subjects.APIDeploy, id, wanted(s.app(id, version)))
				w.requests.Add(int64(requests))
				w.repeats.Add(int64(requests - 1))
				if err != nil {
					return err
				}
				if version > 1 && a.outcome == subjects.OutcomeCreated {
					return fmt.Errorf("version %d of %s was created", version, id)
				}
				w.answers.Add(1)
				w.last[i] = version
				select {
				case <-w.done:
					return nil
				default:
				}
			}
		})
	}
	return w
}

// flow waits until some more writes have been answered.
func (s *site) flow(w *writers) {
	s.t.Helper()
	const more = 20
	from := w.answers.Load()
	soon(s.t, "writes flow", func() error {
		if n := w.answers.Load() - from; n < more {
			return fmt.Errorf("%d of %d", n, more)
		}
		return nil
	})
}

// settle ends the writers, and checks that each version was written once and in order,
// however often it was asked for, and that the last one stands.
func (s *site) settle(w *writers, history *testenv.History, replica *siteReplica) {
	s.t.Helper()
	close(w.done)
	mustDo(s.t, w.Wait())
	s.t.Logf("%d writes took %d requests", w.answers.Load(), w.requests.Load())
	for i, version := range w.last {
		id := s.id("app-" + strconv.Itoa(i))
		svc := &servingv1.Service{}
		mustDo(s.t, s.Client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: kservice.Name(id)}, svc))
		at, err := strconv.ParseInt(svc.ResourceVersion, 10, 64)
		mustDo(s.t, err, history.WaitFor(s.t.Context(), at))
		seen := 0
		for _, change := range history.Changes() {
			if change.Kind != "Service" || change.Name != svc.Name {
				continue
			}
			seen++
			if got, want := change.Object.GetAnnotations()[keySpecSHA], s.digest(id, seen); got != want {
				s.t.Errorf("%s@%s, the %dth version, has digest %s, want %s", id, change.ResourceVersion, seen, got, want)
			}
		}
		if seen != version {
			s.t.Errorf("%s had %d versions, want %d", id, seen, version)
		}
		s.cached([]*siteReplica{replica}, id, svc)
	}
}

// NATS is restarted while apps are deployed: who asks again until there is an
// answer has each version written once, and the last one stands.
func TestNATSRestart(t *testing.T) {
	t.Parallel()
	kubesuite.Needed(t)
	servers, err := testenv.StartNATS(t.Context(), testenv.NATSOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustDo(t, servers.Close()) })
	s := newSite(t, cluster.Get(t), "", servers.URL())
	replica := s.replica(siteConfig{})
	history, err := s.History(t.Context(), s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { mustDo(t, history.Stop()) }()
	w := s.writers(8)
	s.flow(w)
	// On a busy machine a server may come and go between two requests.
	for restarts := 0; restarts < 2 || w.repeats.Load() == 0 && restarts < 20; restarts++ {
		end := servers.Kill
		if restarts%2 == 0 {
			end = servers.Stop
		}
		mustDo(t, end(0), servers.Start(t.Context(), 0))
		s.flow(w)
	}
	s.settle(w, history, replica)
	if w.repeats.Load() == 0 {
		t.Errorf("%d requests for %d answers: nothing was asked for twice", w.requests.Load(), w.answers.Load())
	}
}

// The API server is killed and comes back while apps are deployed: every answer is a
// success or tells to ask again, and asking again succeeds. What is there is never
// taken to be missing.
func TestAPIServerRestart(t *testing.T) {
	t.Parallel()
	kubesuite.Needed(t)
	own, err := testenv.Start(t.Context(), testenv.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustDo(t, own.Stop()) })
	s := newSite(t, own, "", "")
	replica := s.replica(siteConfig{})
	history, err := s.History(t.Context(), s.namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { mustDo(t, history.Stop()) }()
	there := s.id("there")
	nc := s.dial()
	if _, err := s.well(nc, subjects.APIDeploy, there, wanted(s.app(there, 1))); err != nil {
		t.Fatal(err)
	}
	w := s.writers(4)
	asking, end := context.WithCancel(t.Context())
	defer end()
	stopped := make(chan error, 1)
	var away atomic.Int64
	go func() { stopped <- s.stops(asking, nc, there, &away) }()
	s.flow(w)
	mustDo(t, own.KillAPIServer())
	soon(t, "a stop is answered with 502 or 504", func() error {
		select {
		case err := <-stopped:
			return fmt.Errorf("%w: no more stops: %w", suite.ErrFatal, err)
		default:
		}
		if away.Load() == 0 {
			return errNotYet
		}
		return nil
	})
	mustDo(t, own.StartAPIServer(t.Context()))
	s.flow(w)
	end()
	mustDo(t, <-stopped)
	s.settle(w, history, replica)
}

// stops stops an app that is there again and again until ctx is done, and counts the
// answers that Kubernetes is away.
func (s *site) stops(ctx context.Context, nc *nats.Conn, id subjects.AppID, away *atomic.Int64) error {
	for ctx.Err() == nil {
		a, err := s.op(nc, subjects.APIStop, id, nil)
		switch {
		case err != nil:
			return err
		case a.late():
			away.Add(1)
		case a.code != 0:
			return fmt.Errorf("stop: %w", a.err())
		case a.outcome != subjects.OutcomeStopped && a.outcome != subjects.OutcomeUnchanged:
			return fmt.Errorf("stop of an app that is there: %s", a.outcome)
		}
	}
	return nil
}
