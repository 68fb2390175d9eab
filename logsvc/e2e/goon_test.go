package e2e_test

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/kubesuite"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// restarted is a world without a bridge, and NATS that outlives each bridge that serve starts with the
// options.
func restarted(t *testing.T, options ...string) (w *world, serve func(services map[string]int) *kubesuite.Instance) {
	t.Helper()
	w = &world{World: sharedWorld(t).Beside()}
	w.NATS = suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL()
	t.Cleanup(func() {
		if err := w.Stop(); err != nil {
			t.Error(err)
		}
	})
	return w, func(services map[string]int) *kubesuite.Instance {
		t.Helper()
		i, err := w.Serve(t.Context(), services, options...)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
}

// `appbridge logs -f` goes on by itself while bridges are stopped and killed, its
// connection is cut until the service has given it up, and its container is started
// again meanwhile: no line is missing and none comes twice.
func TestGoesOn(t *testing.T) {
	t.Parallel()
	w, serve := restarted(t, "--leader-elect", "--lease-namespace", testenv.DefaultNamespace, "--lease-name", "goes-on")
	serving := serve(services())
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	proxy, err := network.NewProxy(strings.TrimPrefix(w.NATS, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })

	writing, stop := context.WithCancel(t.Context())
	defer stop()
	written := make(chan int, 1)
	go func() {
		n := 0
		for writing.Err() == nil {
			if pod.Write(numbered(n)) {
				n++
			}
			_ = testenv.Pause(writing, 3*time.Millisecond) // ends with the test
		}
		written <- n
	}()
	cmd := exec.Command("appbridge", "logs", "-f", "--tail", "all", id.String(), "--nats-url", "nats://"+proxy.Addr())
	var said strings.Builder
	cmd.Stderr = &said
	p := w.follow(t, cmd)
	more := func(what string, n int) {
		t.Helper()
		from := p.lines()
		eventually(t, what, func() error {
			if got := p.lines() - from; got < n {
				return fmt.Errorf("%d lines more", got)
			}
			return nil
		})
	}
	more("the first lines", 100)
	next := serve(nil)
	if err := serving.Stop(patience); err != nil {
		t.Fatal(err)
	}
	more("after a bridge was stopped", 200)
	serving, next = next, serve(nil)
	if err := serving.Kill(); err != nil {
		t.Fatal(err)
	}
	more("after a bridge was killed", 200)
	serving = next
	if err := proxy.Cut(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service has given its reader up", func() error {
		if n := serving.Metric(t, "appbridge_log_streams"); n != 0 {
			return fmt.Errorf("%v streams", n)
		}
		return nil
	})
	if err := pod.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := proxy.Heal(); err != nil {
		t.Fatal(err)
	}
	more("after the connection was back", 200)
	stop()
	n := <-written
	eventually(t, "all lines", func() error {
		if got := p.lines(); got < n {
			return fmt.Errorf("%d lines of %d", got, n)
		}
		return nil
	})
	if c := p.end(); c.wrong != nil || c.next != n {
		t.Errorf("%d lines of %d, %v", c.next, n, c.wrong)
	}
	if strings.Contains(said.String(), "missing") {
		t.Errorf("it says %q", said.String())
	}
	t.Log(said.String())
}

// A traceback that CRI-O has given one time is neither repeated nor lost where `appbridge logs -f` goes on,
// however little of it was wanted: with lines of the same time that are written while no bridge runs.
func TestGoesOnSameTime(t *testing.T) {
	t.Parallel()
	w, serve := restarted(t)
	serving := serve(services())
	id, service := w.app(t)
	pod := w.podOf(t, service, service+"-1", testenv.CRIO)
	trace := []string{"Traceback (most recent call last):", "", "  at x", "", "  at y", ""}
	write := func() {
		for _, text := range trace {
			pod.WriteRecords(testenv.Record{Time: time.Date(2026, 11, 26, 13, 59, 58, 123456789, time.UTC), Text: text})
		}
	}
	write()
	readers := make([]*kubesuite.Command, len(trace)+2)
	for tail := range readers {
		readers[tail] = w.Start(t, fmt.Sprintf("exec appbridge logs -f --tail %d %s --nats-url %s", tail, id, w.NATS))
	}
	follow := func() {
		t.Helper()
		eventually(t, "all follow", func() error {
			if n := pod.AtEnd(); n != len(readers) {
				return fmt.Errorf("%d of %d", n, len(readers))
			}
			return nil
		})
	}
	follow()
	for tail, c := range readers {
		c.WaitFor(strings.Join(slices.Concat(trace[max(0, len(trace)-tail):], []string{""}), "\n"))
	}
	for range 2 {
		if err := serving.Stop(patience); err != nil {
			t.Fatal(err)
		}
		write()
		serving = serve(nil)
		follow()
	}
	pod.Write("the end")
	for tail, c := range readers {
		c.WaitFor("the end\n")
		want := slices.Concat(trace[max(0, len(trace)-tail):], trace, trace, []string{"the end", ""})
		if got := c.Stdout(); got != strings.Join(want, "\n") {
			t.Errorf("--tail %d: got %q, want %q, notes %q", tail, got, want, c.Stderr())
		}
		if notes := c.Stderr(); strings.Contains(notes, "missing") || strings.Contains(notes, "repeated") {
			t.Errorf("--tail %d: got notes %q", tail, notes)
		}
		c.Interrupt()
	}
}
