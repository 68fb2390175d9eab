package logsvc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/network"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The answer to a stop goes to an inbox or nowhere: its reply subject is a
// tenant's choice, and the service may write where the tenant may not.
func TestStopReply(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: forever}
	b := newBench(t, source)
	victim := b.inbox("$KV.flyte-apps.>")
	in := b.tail("")
	stop, err := b.names.LogsStop("shop", in.next().Header.Get(subjects.HeaderLogStream))
	if err != nil {
		t.Fatal(err)
	}
	b.publish(stop, "$KV.flyte-apps.bank.production.vault", "")
	if _, end := in.all(); end.Header.Get(subjects.HeaderLogEnd) != "stopped" {
		t.Errorf("the end is %v", end.Header)
	}
	b.idle(source)
	select {
	case msg := <-victim.msgs:
		t.Errorf("got %q on %s", msg.Data, msg.Subject)
	default:
	}
}

// What comes again is what came before, also when a batch was too long for one
// message.
func TestResentIsTheSame(t *testing.T) {
	t.Parallel()
	for _, payload := range []int32{8 << 10, 1 << 20} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			t.Parallel()
			s := suite.NATS(t, &server.Options{MaxPayload: payload})
			b := serveOn(t, s, dial(t, s.ClientURL()), dial(t, s.ClientURL()), numbered(100_000))
			in := b.tail(`{"format": "raw", "window": 64}`)
			first := map[string][]byte{}
			for again := 0; again < 50; {
				m := in.next()
				seq := m.Header.Get(subjects.HeaderLogSeq)
				if before, ok := first[seq]; ok {
					again++
					if !bytes.Equal(before, m.Data) {
						t.Fatalf("message %s was %.30q and comes again as %.30q", seq, before, m.Data)
					}
					continue
				}
				first[seq] = bytes.Clone(m.Data)
				if len(first) <= 100 { // then the reader is silent
					if err := b.nc.Publish(m.Reply, nil); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// A line of a quiet replica does not wait for the end of another one's flood.
func TestQuietReplica(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{true, false} {
		t.Run(fmt.Sprintf("live %t", live), func(t *testing.T) {
			t.Parallel()
			var said atomic.Bool
			source := &written{replicas: []string{"noisy", "quiet"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
				lines := manyLines("noisy", 1000)
				began := time.Now()
				for ctx.Err() == nil { // much more than is sent
					if err := out.Lines(ctx, "noisy", lines, live, ""); err != nil {
						return err
					}
					if time.Since(began) > time.Second && said.CompareAndSwap(false, true) {
						if err := out.Lines(ctx, "quiet", []logsvc.Line{line(0, "hello")}, live, ""); err != nil {
							return err
						}
					}
				}
				return ctx.Err()
			}}
			b := newBench(t, source)
			in := b.tail(`{"format": "raw"}`)
			for after := 0; ; {
				m := in.next()
				// It waits behind what was queued before it, not behind all that comes.
				if said.Load() {
					if after += len(m.Data); after > 64<<20 {
						t.Fatalf("the quiet line does not come within %d MiB", after>>20)
					}
				}
				if m.Header.Get(subjects.HeaderLogReplica) == "quiet" {
					return
				}
			}
		})
	}
}

// manyLines are numbered lines of 100 bytes and more.
func manyLines(kind string, n int) []logsvc.Line {
	lines := make([]logsvc.Line, n)
	for i := range lines {
		lines[i] = line(0, fmt.Sprintf("%s %06d %s", kind, i, strings.Repeat(".", 100)))
	}
	return lines
}

// The note about lines that are missing stands where they are missing.
func TestDroppedPlace(t *testing.T) {
	t.Parallel()
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
		return errors.Join(out.Lines(ctx, "a", manyLines("old", 4000), false, ""), out.Lines(ctx, "a", manyLines("new", 60_000), true, ""))
	}}
	b := newBench(t, source)
	msgs, _ := b.tail(`{"format": "raw"}`).all()
	next := map[string]int{}
	for _, m := range msgs {
		if n := 0; m.Header.Get(subjects.HeaderLogDropped) != "" {
			if _, err := fmt.Sscan(m.Header.Get(subjects.HeaderLogDropped), &n); err != nil {
				t.Fatal(err)
			}
			next["new"] += n
			continue
		}
		for l := range strings.Lines(string(m.Data)) {
			var kind string
			var i int
			if _, err := fmt.Sscanf(l, "%s %d", &kind, &i); err != nil || l[0] == '#' {
				continue
			}
			if i != next[kind] || kind == "old" && next["new"] > 0 {
				t.Fatalf("%.12q comes where %s %d is due, with %d new ones before", l, kind, next[kind], next["new"])
			}
			next[kind]++
		}
	}
	if next["old"] != 4000 || next["new"] != 60_000 {
		t.Errorf("%v lines are accounted for", next)
	}
}

// proxied is a way to a server that can be cut.
func proxied(t *testing.T, s *server.Server) *network.Proxy {
	t.Helper()
	p, err := network.NewProxy(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// A stream whose end falls into an outage of the service's connection has it afterwards, also when
// the end was written to a connection that was dead by then.
func TestEndInOutage(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*network.Proxy) error{"cut": (*network.Proxy).Cut, "hang": (*network.Proxy).Hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := suite.NATS(t, nil)
			p := proxied(t, s)
			finish := make(chan struct{})
			source := &written{replicas: []string{"a"}, run: func(ctx context.Context, _ logsvc.Query, _ logsvc.Sink) error {
				select {
				case <-finish:
				case <-ctx.Done():
				}
				return ctx.Err()
			}}
			own := dial(t, "nats://"+p.Addr())
			b := serveOn(t, s, own, dial(t, s.ClientURL()), source)
			in := b.tail("")
			in.next()
			if err := fail(p); err != nil {
				t.Fatal(err)
			}
			before := own.Stats().OutMsgs
			close(finish)
			b.eventually("the stream ends", func() error {
				if source.taken.Load() != 0 {
					return errors.New("it goes on")
				}
				if name == "hang" && own.Stats().OutMsgs == before {
					return errors.New("the end is not written")
				}
				return nil
			})
			if err := p.Heal(); err != nil {
				t.Fatal(err)
			}
			if _, end := in.all(); end.Header.Get(subjects.HeaderLogEnd) != "eof" {
				t.Errorf("the end is %v", end.Header)
			}
		})
	}
}

// The time in which the service itself is cut off does not count as the reader's
// absence.
func TestOwnOutage(t *testing.T) {
	t.Parallel()
	untilInTime(t, func() bool { return ownOutage(t) })
}

func ownOutage(t *testing.T) (inTime bool) {
	t.Helper()
	s := suite.NATS(t, nil)
	p := proxied(t, s)
	source := &written{replicas: []string{"a"}, run: forever}
	own := dial(t, "nats://"+p.Addr())
	b := serveOn(t, s, own, dial(t, s.ClientURL()), source)
	in := b.tail("")
	in.next()
	began := time.Now()
	// The reader is away for a moment, in which the service loses its connection.
	if err := in.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := b.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	testPause(t, 700*time.Millisecond)
	if err := p.Cut(); err != nil {
		t.Fatal(err)
	}
	if time.Since(began) > 4*time.Second {
		return false // it was missing for too long before the outage
	}
	again := b.inbox(in.subject)
	testPause(t, 3*time.Second)
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the service is back", func() error {
		if !own.IsConnected() {
			return errors.New("it is away")
		}
		return nil
	})
	testPause(t, 3*time.Second)
	if source.taken.Load() != 1 {
		t.Error("the stream has ended")
	}
	if err := again.sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	b.idle(source)
	return true
}

func testPause(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
}

// However many replicas an app has and however little a server lets through,
// there is an answer.
func TestSmallPayload(t *testing.T) {
	t.Parallel()
	for _, payload := range []int32{4 << 10, 64 << 10} {
		for _, n := range []int{1, 500} {
			for _, format := range []string{"text", "json"} {
				t.Run(fmt.Sprintf("%d replicas %d bytes %s", n, payload, format), func(t *testing.T) {
					t.Parallel()
					source := &written{run: func(ctx context.Context, _ logsvc.Query, out logsvc.Sink) error {
						return out.Lines(ctx, "checkout-shop-production-00001-deployment-0", []logsvc.Line{line(0, "hello")}, false, "")
					}}
					for i := range n {
						source.replicas = append(source.replicas, fmt.Sprintf("checkout-shop-production-00001-deployment-%d", i))
					}
					s := suite.NATS(t, &server.Options{MaxPayload: payload})
					b := serveOn(t, s, dial(t, s.ClientURL()), dial(t, s.ClientURL()), source)
					body := `{"format": "` + format + `"}`
					msgs, end := b.tail(body).all()
					if got := text(msgs); !strings.Contains(got, "hello") || end.Header.Get(subjects.HeaderLogEnd) != "eof" {
						t.Errorf("got %.200q, %v", got, end.Header)
					}
					msg, err := b.nc.Request(b.subject(subjects.LogGet), []byte(body), patience)
					if err != nil || !strings.Contains(string(msg.Data), "hello") {
						t.Errorf("got %v, %v", msg, err)
					}
				})
			}
		}
	}
}

// A word that comes early has its place in the stream as any other message, and a
// reader with a window acknowledges it.
func TestEarlyWord(t *testing.T) {
	t.Parallel()
	slow := make(chan struct{})
	source := some("a")
	source.open = func(ctx context.Context, _ logsvc.Query) error {
		select {
		case <-slow:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	b := newBench(t, source)
	in := b.tail(`{"window": 4}`)
	first := in.nextNew()
	if got, want := string(first.Data), "# appbridge: waiting for Kubernetes\n"; got != want || first.Reply == "" || first.Header.Get(subjects.HeaderLogSeq) != "1" {
		t.Errorf("got %q %v %q, want %q", got, first.Header, first.Reply, want)
	}
	close(slow)
	if err := b.nc.Publish(first.Reply, nil); err != nil {
		t.Fatal(err)
	}
	var all []*nats.Msg
	for {
		m := in.nextNew()
		if m.Header.Get(subjects.HeaderLogEnd) != "" {
			break
		}
		all = append(all, m)
		if err := b.nc.Publish(m.Reply, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := text(all), "# appbridge: replicas: a\none\ntwo\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The answer to an open that falls into an outage of the service's connection comes afterwards.
func TestOpenInOutage(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, nil)
	p := proxied(t, s)
	source := some("a")
	found, opening := make(chan struct{}), make(chan struct{})
	source.open = func(ctx context.Context, _ logsvc.Query) error {
		close(opening)
		select {
		case <-found:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	own := dial(t, "nats://"+p.Addr())
	b := serveOn(t, s, own, dial(t, s.ClientURL()), source)
	in := b.inbox(b.nc.NewInbox())
	b.publish(b.subject(subjects.LogOpen), in.subject, "")
	<-opening
	if err := p.Cut(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the service is cut off", func() error {
		if own.IsConnected() {
			return errors.New("it is connected")
		}
		return nil
	})
	close(found)
	testPause(t, 200*time.Millisecond)
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
	m := in.next()
	if got := string(m.Data); !strings.HasPrefix(got, "flyte.apps.logs.out.shop.") {
		t.Fatalf("got %q %v", got, m.Header)
	}
	if msgs, _ := b.inbox(string(m.Data)).all(); text(msgs[1:]) != "one\ntwo\n" {
		t.Errorf("got %q", text(msgs))
	}
}

// A stream to an inbox into which the service may not publish gives its slot back.
func TestDeniedInbox(t *testing.T) {
	t.Parallel()
	users := []*server.User{
		{Username: "service", Password: "s", Permissions: &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"_INBOX.denied.>"}}}},
		{Username: "reader", Password: "r"},
	}
	s := suite.NATS(t, &server.Options{Users: users})
	source := &written{replicas: []string{"a"}, run: forever}
	b := serveOn(t, s, dial(t, s.ClientURL(), nats.UserInfo("service", "s")), dial(t, s.ClientURL(), nats.UserInfo("reader", "r")), source)
	b.publish(b.subject(subjects.LogTail), "_INBOX.denied.1", "")
	b.publish(b.subject(subjects.LogTail), "_INBOX.denied.2", `{"window": 4}`)
	b.eventually("the streams are open", func() error {
		if n := source.opened.Load(); n != 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	b.idle(source)
}

// A request that is refused while the connection for answers is lost has its refusal at once.
func TestRefusedInOutage(t *testing.T) {
	t.Parallel()
	s := suite.NATS(t, nil)
	p := proxied(t, s)
	own := dial(t, "nats://"+p.Addr())
	source := &written{replicas: []string{"a"}, run: forever}
	b := serveOnTwo(t, s, dial(t, s.ClientURL()), own, dial(t, s.ClientURL()), source, func(c *logsvc.Config) { c.MaxStreams = 1 })
	b.tail("").next()
	if err := p.Cut(); err != nil {
		t.Fatal(err)
	}
	b.eventually("the service is cut off", func() error {
		if own.IsConnected() {
			return errors.New("it is connected")
		}
		return nil
	})
	if m := b.tail("").next(); m.Header.Get(subjects.HeaderServiceErrorCode) != "429" {
		t.Errorf("got %q %v", m.Data, m.Header)
	}
	if err := p.Heal(); err != nil {
		t.Fatal(err)
	}
}
