package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func startNATS(t *testing.T, opts testenv.NATSOptions) *testenv.NATS {
	t.Helper()
	opts.Logf = t.Logf
	n, err := testenv.StartNATS(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// connect returns a client that never gives up.
func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return must[jetstream.JetStream](t)(jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience)))
}

// publish tries until the stream has taken the message, each exactly once.
func publish(ctx context.Context, js jetstream.JetStream, number int) error {
	for {
		try, cancel := context.WithTimeout(ctx, time.Second)
		ack, err := js.Publish(try, "s.x", []byte(fmt.Sprint(number)), jetstream.WithMsgID(fmt.Sprint(number)))
		cancel()
		if err == nil {
			if got, want := ack.Sequence, uint64(number); got != want {
				return fmt.Errorf("message %d is number %d of the stream", want, got)
			}
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func healthy(t *testing.T, n *testenv.NATS) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := n.WaitHealthy(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("healthy after %s", time.Since(began))
}

func TestNATSAlone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := startNATS(t, testenv.NATSOptions{MaxPayload: 2048})
	url := n.URL()
	js := connect(t, url)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}}); err != nil {
		t.Fatal(err)
	}
	if got, want := js.Conn().MaxPayload(), int64(2048); got != want {
		t.Errorf("largest payload = %d, want %d", got, want)
	}
	number := 0
	for name, end := range map[string]func(int) error{"kill": n.Kill, "stop": n.Stop} {
		number++
		if err := publish(ctx, js, number); err != nil {
			t.Fatal(err)
		}
		if err := end(0); err != nil {
			t.Fatal(err)
		}
		if n.Running(0) {
			t.Fatalf("%s: it runs", name)
		}
		short, cancel := context.WithTimeout(ctx, much)
		if err := n.WaitHealthy(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: wait without a server: got %v, want the deadline passed", name, err)
		}
		cancel()
		if err := end(0); err != nil {
			t.Errorf("%s twice: %v", name, err)
		}
		if err := n.Start(ctx, 0); err != nil {
			t.Fatal(err)
		}
		healthy(t, n)
		if got := n.URL(); got != url {
			t.Errorf("%s: URL = %s, want %s", name, got, url)
		}
		if err := n.Start(ctx, 0); err == nil {
			t.Errorf("%s: started a server that runs", name)
		}
	}
	if err := publish(ctx, js, number+1); err != nil {
		t.Fatal(err)
	}
	if got, err := n.Leader(ctx, "S"); err != nil || got != 0 {
		t.Errorf("leader = %d, %v, want 0", got, err)
	}
	if err := n.Isolate(0); err == nil {
		t.Error("isolated the only server")
	}
	if _, err := testenv.StartNATS(ctx, testenv.NATSOptions{Servers: 2}); err == nil {
		t.Error("started two servers")
	}
}

func TestNATSCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := startNATS(t, testenv.NATSOptions{Servers: 3})
	js := connect(t, n.URL())
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, Replicas: 3}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(n.URL(), "nats://127.0.0.1:"), 3; got != want {
		t.Errorf("%s has %d servers, want %d", n.URL(), got, want)
	}
	number := 0
	next := func(js jetstream.JetStream) {
		t.Helper()
		number++
		began := time.Now()
		if err := publish(ctx, js, number); err != nil {
			t.Fatal(err)
		}
		t.Logf("message %d after %s", number, time.Since(began))
	}
	next(js)

	// Without its leader the cluster goes on.
	leader := must[int](t)(n.Leader(ctx, "S"))
	if err := n.Kill(leader); err != nil {
		t.Fatal(err)
	}
	next(js)
	if got := must[int](t)(n.Leader(ctx, "S")); got == leader {
		t.Errorf("the killed server %d leads", got)
	}
	if err := n.Start(ctx, leader); err != nil {
		t.Fatal(err)
	}
	healthy(t, n)

	// A leader that hears of no other loses its office, and takes no message.
	leader = must[int](t)(n.Leader(ctx, "S"))
	isolated := connect(t, n.ServerURL(leader))
	if err := n.Isolate(leader); err != nil {
		t.Fatal(err)
	}
	try, cancel := context.WithTimeout(ctx, time.Second)
	if _, err := isolated.Publish(try, "s.x", []byte("lost")); err == nil {
		t.Error("an isolated leader took a message")
	}
	cancel()
	elected := leader
	for elected == leader {
		elected = must[int](t)(n.Leader(ctx, "S"))
		<-time.After(20 * time.Millisecond)
	}
	next(connect(t, n.ServerURL(elected)))
	try, cancel = context.WithTimeout(ctx, time.Second)
	if _, err := isolated.Publish(try, "s.x", []byte("lost")); err == nil {
		t.Error("an isolated server took a message while another led")
	}
	cancel()
	short, cancel := context.WithTimeout(ctx, much)
	if err := n.WaitHealthy(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait in a parted cluster: got %v, want the deadline passed", err)
	}
	cancel()
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	healthy(t, n)
	next(js)
	info := must[jetstream.Stream](t)(isolated.Stream(ctx, "S")).CachedInfo()
	if got, want := info.State.Msgs, uint64(number); got != want {
		t.Errorf("%d messages, want %d", got, want)
	}

	// A leader that stops in good order hands over.
	leader = must[int](t)(n.Leader(ctx, "S"))
	if err := n.Stop(leader); err != nil {
		t.Fatal(err)
	}
	next(js)
	if err := n.Start(ctx, leader); err != nil {
		t.Fatal(err)
	}
	healthy(t, n)

	for i := range n.Size() {
		if err := n.Kill(i); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n.Size() {
		if err := n.Start(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	healthy(t, n)
	next(js)
}

func TestNATSLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	n := startNATS(t, testenv.NATSOptions{})
	dir, pids, err := testenv.NATSTraces(n)
	if err != nil {
		t.Fatal(err)
	}
	if err := testenv.NATSLoseParent(n); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(soon)
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil {
			if time.Now().After(deadline) {
				t.Fatalf("process %d still runs", pid)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: got %v, want it gone", dir, err)
	}
}
