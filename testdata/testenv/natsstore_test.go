package testenv_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv"
)

// fill publishes until the stream's last sequence is last.
func fill(t *testing.T, js jetstream.JetStream, stream string, last uint64) {
	t.Helper()
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for n := lastOf(t, js, stream); n < last; {
		try, cancel := context.WithTimeout(deadline, time.Second)
		_, err := js.Publish(try, stream, []byte("x"), jetstream.WithExpectLastSequence(n)) // each at most once
		cancel()
		if err == nil {
			n++
		} else {
			n = lastOf(t, js, stream)
		}
		if deadline.Err() != nil {
			t.Fatalf("publish to %s: %v", stream, err)
		}
	}
}

// lastOf is the last sequence of a stream, once its leader answers.
func lastOf(t *testing.T, js jetstream.JetStream, name string) uint64 {
	t.Helper()
	deadline, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for {
		try, cancel := context.WithTimeout(deadline, time.Second)
		stream, err := js.Stream(try, name)
		cancel()
		if err == nil {
			return stream.CachedInfo().State.LastSeq
		}
		if testenv.Pause(deadline, 20*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
}

func forAll(t *testing.T, n *testenv.NATS, do func(int) error) {
	t.Helper()
	for i := range n.Size() {
		if err := do(i); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStoreRolledBack(t *testing.T) {
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			n := startNATS(t, testenv.NATSOptions{Servers: servers, Account: true})
			js := connect(t, n.URL())
			for _, name := range []string{"S", "T"} {
				if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: servers}); err != nil {
					t.Fatal(err)
				}
				fill(t, js, name, 10)
			}
			frozen := false
			saved := must[*testenv.SavedStore](t)(n.SaveStore(ctx, func() { frozen = true }))
			if !frozen {
				t.Error("the servers were not stopped meanwhile")
			}
			start := func(i int) error { return n.Start(ctx, i) }
			for _, test := range []struct {
				streams []string
				s, t    uint64
			}{
				{[]string{"S"}, 10, 20},
				{[]string{"T"}, 30, 10},
				{[]string{"S", "T"}, 10, 10},
				{nil, 10, 10},
			} {
				fill(t, js, "S", max(20, test.s))
				fill(t, js, "T", 20)
				if err := n.RestoreStore(saved); err == nil {
					t.Fatal("restored below a server that runs")
				}
				forAll(t, n, n.Kill)
				if err := n.RestoreStore(saved, test.streams...); err != nil {
					t.Fatal(err)
				}
				forAll(t, n, start)
				healthy(t, n)
				if s, u := lastOf(t, js, "S"), lastOf(t, js, "T"); s != test.s || u != test.t {
					t.Errorf("%v: the streams end at %d and %d, want %d and %d", test.streams, s, u, test.s, test.t)
				}
			}
			forAll(t, n, n.Kill)
			if err := n.RestoreStore(saved, "U"); err == nil {
				t.Error("restored a stream that the copy does not have")
			}
			if _, err := n.SaveStore(ctx, nil); err == nil {
				t.Error("saved servers that do not run")
			}
			if err := saved.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLimitsOverARestart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := startNATS(t, testenv.NATSOptions{Account: true})
	js := connect(t, n.URL())
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"S"}}); err != nil {
		t.Fatal(err)
	}
	if err := startNATS(t, testenv.NATSOptions{}).SetLimits(testenv.NATSLimits{AccountStore: 1}); err == nil {
		t.Error("the global account took a limit")
	}
	large := make([]byte, 8<<10)
	publish := func() error {
		deadline, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		for {
			try, cancel := context.WithTimeout(deadline, time.Second)
			_, err := js.Publish(try, "S", large)
			cancel()
			if api := (*jetstream.APIError)(nil); err == nil || errors.As(err, &api) || deadline.Err() != nil || errors.Is(err, nats.ErrMaxPayload) {
				return err
			}
		}
	}
	for _, test := range []struct {
		name    string
		limits  testenv.NATSLimits
		refused bool
	}{
		{"as at the start", testenv.NATSLimits{}, false},
		{"a small payload", testenv.NATSLimits{MaxPayload: 4 << 10}, true},
		{"as at the start", testenv.NATSLimits{}, false},
		{"a small disk", testenv.NATSLimits{FileStore: 4 << 10}, true},
		{"as at the start", testenv.NATSLimits{}, false},
		{"a small account", testenv.NATSLimits{AccountStore: 4 << 10}, true},
		{"as at the start", testenv.NATSLimits{}, false},
	} {
		if err := n.SetLimits(test.limits); err != nil {
			t.Fatal(err)
		}
		forAll(t, n, n.Stop)
		forAll(t, n, func(i int) error { return n.Start(ctx, i) })
		lastOf(t, js, "S")
		if err := publish(); (err != nil) != test.refused {
			t.Errorf("%s: publish returned %v, want refused: %v", test.name, err, test.refused)
		}
	}
}
