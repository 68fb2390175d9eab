package pods_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/logsvc/pods"
	"github.com/appbridge/appbridge/testdata/testenv"
)

func TestKubernetesFailingReplica(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes()
	a := p.newApp("half")
	good, bad := a.run("00001"), a.run("00001")
	good.Write("good")
	bad.Write("bad")
	bad.Refuse(http.StatusServiceUnavailable)
	t.Run("follow", func(t *testing.T) {
		r := read(t, k, all(a))
		r.wait(good, "good")
		soon(t, "the failure is noted", func() error { return r.noted(bad.Name() + " replica: cannot be read: ") })
		good.Write("more")
		r.wait(good, "good", "more")
		bad.Refuse(0)
		r.wait(bad, "bad")
		bad.Write("more")
		r.wait(bad, "bad", "more")
		if len(r.notes) != 1 {
			t.Errorf("got notes %q, want one", r.notes)
		}
	})
	t.Run("no follow", func(t *testing.T) {
		bad.Refuse(http.StatusServiceUnavailable)
		q := all(a)
		q.Follow = logsvc.FollowNever
		r := read(t, k, q)
		r.end()
		r.wait(good, "good", "more")
		check(t, r.noted(bad.Name()+" replica: cannot be read: "))
	})
	t.Run("none can be read", func(t *testing.T) {
		q := all(a)
		q.Follow, q.Replica = logsvc.FollowNever, bad.Name()
		err := read(t, k, q).ended()
		var failure *request.Error
		if !errors.As(err, &failure) || failure.Code != 502 {
			t.Errorf("got %v, want an Error 502", err)
		}
		bad.Refuse(0)
	})
	t.Run("the kubelet forbids it", func(t *testing.T) {
		bad.Refuse(http.StatusForbidden)
		q := all(a)
		q.Follow = logsvc.FollowNever
		r := read(t, k, q)
		r.end()
		r.wait(good, "good", "more")
		check(t, r.noted(bad.Name()+" replica: cannot be read: "))
		bad.Refuse(0)
	})
	t.Run("hang", func(t *testing.T) {
		bad.Hang(true)
		q := all(a)
		q.Follow = logsvc.FollowNever
		r := read(t, k, q)
		r.wait(good, "good", "more")
		soon(t, "it tries again", func() error {
			if got := len(bad.Requests()); got < 2 || bad.Followers() == 0 {
				return fmt.Errorf("%d requests", got)
			}
			return nil
		})
		bad.Hang(false)
		r.end()
	})
}

// A log that is longer than the read rate allows until a query's time is over has its first lines, and
// the reason is noted.
func TestLateByReadRate(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	k := p.kubernetes(func(c *pods.Config) { c.MaxBytesPerSecond = 64 << 10 })
	a := p.newApp("slowly")
	pod := a.run("00001")
	pod.Write(numbers(0, 20_000)...)
	q := all(a)
	q.Follow, q.Until = logsvc.FollowNever, time.Now().Add(2*time.Second)
	r := read(t, k, q)
	r.end()
	check(t, r.noted(pod.Name()+" replica: not all of it could be read: the log service may not read more in time (max-log-rate)"))
	if len(r.of(pod)) == 0 {
		t.Error("it has no line")
	}
}

// Replicas on nodes that refuse connections have one cause, without the addresses of the nodes.
func TestNodesRefuseConnections(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.newApp("refused")
	var pods []*testenv.Pod
	for i := range 2 {
		node := p.node(fmt.Sprintf("%s-%d", p.namespace, i))
		pods = append(pods, a.runOn(node, "00001"))
		if err := node.RefuseConnections(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	q := all(a)
	q.Follow, q.Until = logsvc.FollowNever, time.Now().Add(2*time.Second)
	r := read(t, p.kubernetes(), q)
	if err := r.ended(); err == nil {
		t.Error("there is no error")
	}
	for _, pod := range pods {
		check(t, r.noted(pod.Name()+" replica: cannot be read: open the log: Get dial tcp connect: connection refused"))
	}
}
