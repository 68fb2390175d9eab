package e2e_test

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The API server is started again five times under a follow of numbered lines:
// no number is missing and none comes twice.
func TestResume(t *testing.T) {
	t.Parallel()
	w := ownCluster(t)
	id, service := w.app(t)
	pod := w.pod(t, service, service+"-1")
	writing, stop := context.WithCancel(t.Context())
	defer stop()
	written := make(chan int, 1)
	go func() {
		n := 0
		for writing.Err() == nil {
			pod.Write(numbered(n))
			n++
			_ = testenv.Pause(writing, 3*time.Millisecond) // ends with the test
		}
		written <- n
	}()
	// All lines: more than the last 1,000 may be there before a reader begins.
	readers := map[string]*exec.Cmd{
		"appbridge": exec.Command("appbridge", "logs", "-f", "--tail", "all", id.String()),
		"nats":      exec.Command("nats", "req", "--raw", "--replies=0", "--timeout=1h", subjectOf(t, subjects.LogTail, id), `{"follow": true, "tail": "all"}`),
	}
	seen := map[string]*progress{}
	for name, cmd := range readers {
		seen[name] = w.follow(t, cmd)
	}
	all := func(n int) {
		t.Helper()
		for name, p := range seen {
			eventually(t, fmt.Sprintf("%s has read %d lines", name, n), func() error {
				if got := p.lines(); got < n {
					return fmt.Errorf("%d", got)
				}
				return nil
			})
		}
	}
	all(100)
	for range 5 {
		if err := w.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		all(min(seen["nats"].lines(), seen["appbridge"].lines()) + 500)
	}
	stop()
	n := <-written
	all(n)
	for name, p := range seen {
		if c := p.end(); c.wrong != nil || c.next != n {
			t.Errorf("%s: %d lines of %d, %v, notes %q", name, c.next, n, c.wrong, c.notes)
		}
	}
}

// progress is a reader of numbered lines at work.
type progress struct {
	cmd  *exec.Cmd
	seen chan int
	done chan struct{}
	*counter
}

func (w *world) follow(t *testing.T, cmd *exec.Cmd) *progress {
	t.Helper()
	w.Prepare(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &progress{cmd: cmd, seen: make(chan int, 1), done: make(chan struct{}), counter: &counter{}}
	p.seen <- 0
	go func() {
		defer close(p.done)
		_ = p.read(&watched{out, p}) // ends with the process
	}()
	t.Cleanup(func() { p.end() })
	return p
}

// watched publishes how far a reader is.
type watched struct {
	io.Reader
	p *progress
}

func (w *watched) Read(b []byte) (int, error) {
	<-w.p.seen
	w.p.seen <- w.p.next
	return w.Reader.Read(b)
}

func (p *progress) lines() int {
	n := <-p.seen
	p.seen <- n
	return n
}

// end interrupts the reader and is what it has read.
func (p *progress) end() *counter {
	_ = p.cmd.Process.Signal(syscall.SIGINT) // it may have ended
	<-p.done
	_ = p.cmd.Wait()
	return p.counter
}

// A day in the life of an app, as the stock client shows it.
func TestStory(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	ctx := t.Context()
	id, service := w.app(t)
	// The empty line that the client puts behind every message is left out.
	c := w.Start(t, "nats req --raw --replies=0 --timeout=1h "+subjectOf(t, subjects.LogTail, id)+` '{"follow": true}' | sed -u '/^$/d'`)
	c.WaitFor("# appbridge: replicas: none\n")
	c.WaitFor("scaled to zero")
	first := w.pod(t, service, service+"-1")
	first.Write("hello from 1")
	c.WaitFor("# appbridge: replicas: " + service + "-1\nhello from 1\n")
	if err := first.Crash(ctx); err != nil {
		t.Fatal(err)
	}
	c.WaitFor("# appbridge: replica " + service + "-1: ")
	if err := first.Recover(ctx); err != nil {
		t.Fatal(err)
	}
	first.Write("hello again from 1")
	c.WaitFor("\nhello again from 1\n")
	second := w.pod(t, service, service+"-2")
	second.Write("hello from 2")
	c.WaitFor("# appbridge: replicas: " + service + "-1, " + service + "-2\n")
	c.WaitFor("\n2 hello from 2\n")
	first.Write("goodbye from 1")
	c.WaitFor("\n1 goodbye from 1\n")
	if err := first.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	second.EOF()
	second.Write("still here")
	c.WaitFor("\n2 still here\n")
	if err := second.Finish(ctx, corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	if err := second.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the app is at zero again", func() error {
		if n := strings.Count(c.Stdout(), "scaled to zero"); n != 2 {
			return fmt.Errorf("said %d times in\n%s", n, c.Stdout())
		}
		return nil
	})
	svc := testenv.App{Project: id.Project, Domain: id.Domain, Name: id.Name}.Service()
	if err := w.Client.Delete(ctx, svc); err != nil {
		t.Fatal(err)
	}
	got := c.Wait()
	for _, text := range []string{"hello from 1", "hello again from 1", "hello from 2", "goodbye from 1", "still here"} {
		if n := strings.Count(got, text+"\n"); n != 1 {
			t.Errorf("%q comes %d times", text, n)
		}
	}
}

// 100 follow at the same time; the next is refused, and whoever leaves, however it
// leaves, makes room within three seconds.
func TestHundred(t *testing.T) {
	t.Parallel()
	w := ownWorld(t)
	id, service := w.app(t)
	pod := w.podOf(t, service, service+"-1", testenv.InMemory) // there are hardly as many inotify instances
	pod.Write("hello")
	line := "exec nats req --raw --replies=0 --timeout=1h " + subjectOf(t, subjects.LogTail, id) + ` '{"follow": true}'`
	first, second := w.Start(t, line), w.Start(t, line)
	first.WaitFor("hello\n")
	second.WaitFor("hello\n")
	nc, err := nats.Connect(w.NATS, nats.Timeout(patience))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for range 98 {
		msgs := make(chan *nats.Msg, 16)
		inbox := nc.NewInbox()
		if _, err := nc.ChanSubscribe(inbox, msgs); err != nil {
			t.Fatal(err)
		}
		if err := nc.PublishRequest(subjectOf(t, subjects.LogTail, id), inbox, []byte(`{"follow": true}`)); err != nil {
			t.Fatal(err)
		}
		for lines := 0; lines == 0; {
			select {
			case m := <-msgs:
				lines += strings.Count(string(m.Data), "hello\n")
			case <-time.After(patience):
				t.Fatal("nothing comes")
			}
		}
	}
	refused := w.Start(t, line)
	if got, want := strings.TrimSpace(refused.Wait()), "max-log-streams: 100 of 100 log requests are taken, try again later"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for i, leave := range []func(){
		func() { first.Signal(syscall.SIGINT) },
		func() { second.Signal(syscall.SIGKILL) },
	} {
		leave()
		left := time.Now()
		eventually(t, "the slot is free", func() error {
			if n := int(w.bridge.Metric(t, "appbridge_log_streams")); n != 99-i {
				return fmt.Errorf("%d are taken", n)
			}
			return nil
		})
		t.Logf("the slot was free after %s", time.Since(left).Round(time.Millisecond))
	}
	again := w.Start(t, line)
	again.WaitFor("hello\n")
	again.Interrupt()
}
