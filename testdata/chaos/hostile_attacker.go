package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	// hostilePatience is how long a hostile client waits for an answer.
	hostilePatience = 5 * time.Second
	// hostilePause is between two turns of a client.
	hostilePause = 100 * time.Millisecond
	// A flood is floodBurst requests at once, every floodPause.
	floodBurst = 100
	floodPause = 200 * time.Millisecond
)

// attack is what one client does again and again.
type attack struct {
	name string
	turn func(ctx context.Context, a *attacker) error
}

// attacker is one hostile client.
type attacker struct {
	h       *hostile
	number  int
	project string
	rng     *rand.Rand
	nc      *nats.Conn
}

// run makes one turn after the other. What comes of a turn does not matter.
func (a *attacker) run(ctx context.Context, does attack) {
	a.rng = rand.New(rand.NewPCG(a.h.w.cfg.seed, uint64(a.number)))
	defer func() { a.leave() }()
	for testenv.Pause(ctx, hostilePause+time.Duration(a.rng.IntN(int(hostilePause)))) == nil {
		if a.connect() == nil {
			_ = does.turn(ctx, a)
		}
	}
}

func (a *attacker) connect() (err error) {
	if a.nc != nil && a.nc.IsConnected() {
		return nil
	}
	a.leave()
	a.nc, err = nats.Connect(a.h.w.nats.URL(), nats.NoReconnect(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	return err
}

// leave closes the connection without a word to anybody.
func (a *attacker) leave() {
	if a.nc != nil {
		a.nc.Close()
		a.nc = nil
	}
}

// log is the subject of a log request for an app of the project.
func (a *attacker) log(op subjects.LogOp, name string) string {
	return must(a.h.w.names.Logs(op, hostileApp(a.project, name)))
}

func (a *attacker) api(op subjects.APIOp, name string) string {
	return must(a.h.w.names.API(op, hostileApp(a.project, name)))
}

func (a *attacker) list() string { return must(a.h.w.names.APIList(a.project, "")) }

// must is for subjects of names that are legal.
func must(subject string, err error) string {
	if err != nil {
		panic(err) // a mistake of the harness
	}
	return subject
}

// pick is one of several.
func pick[T any](a *attacker, all ...T) T { return all[a.rng.IntN(len(all))] }

// request waits for an answer, and counts it.
func (a *attacker) request(ctx context.Context, subject, form string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, hostilePatience)
	defer cancel()
	a.h.requests.Add(1)
	msg := &nats.Msg{Subject: subject, Data: body, Header: nats.Header{}}
	if form != "" {
		msg.Header.Set(subjects.HeaderContentType, form)
	}
	answer, err := a.nc.RequestMsgWithContext(ctx, msg)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		a.h.count("no responders")
	case err != nil:
		if ctx.Err() != nil {
			a.h.count("no answer")
		}
	default:
		a.h.count(answer.Header.Get(subjects.HeaderServiceErrorCode))
	}
	return answer, err
}

// flood sends requests and does not wait for their answers.
func (a *attacker) flood(ctx context.Context, next func() (subject, reply string, body []byte)) error {
	for range floodBurst {
		subject, reply, body := next()
		if err := a.nc.PublishRequest(subject, reply, body); err != nil {
			return err
		}
		a.h.requests.Add(1)
	}
	if err := a.nc.FlushWithContext(ctx); err != nil {
		return err
	}
	return testenv.Pause(ctx, floodPause)
}

// tail begins a stream and hands its messages to take, until take returns false, the
// stream ends or the time is over.
func (a *attacker) tail(ctx context.Context, name, options string, long time.Duration, take func(*nats.Msg) bool) error {
	inbox := a.nc.NewInbox()
	messages := make(chan *nats.Msg, 64) // more is dropped by the client
	sub, err := a.nc.ChanSubscribe(inbox, messages)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be gone
	if err := a.nc.PublishRequest(a.log(subjects.LogTail, name), inbox, []byte(options)); err != nil {
		return err
	}
	a.h.requests.Add(1)
	over := time.NewTimer(long)
	defer over.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case msg := <-messages:
			if first {
				a.h.count(msg.Header.Get(subjects.HeaderServiceErrorCode))
			}
			if msg.Header.Get(subjects.HeaderLogEnd) != "" || msg.Header.Get(subjects.HeaderServiceErrorCode) != "" || !take(msg) {
				return nil
			}
		}
	}
}

// deaf sends a request for a stream by a connection of its own from which nothing is ever
// read, and keeps that connection.
func (a *attacker) deaf(ctx context.Context, name, options string, long time.Duration) error {
	u, err := url.Parse(a.h.w.nats.ServerURL(0))
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	inbox := nats.NewInbox()
	if _, err := fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true,\"protocol\":1}\r\nSUB %s 1\r\nPUB %s %s %d\r\n%s\r\n",
		inbox, a.log(subjects.LogTail, name), inbox, len(options), options); err != nil {
		return err
	}
	a.h.requests.Add(1)
	// The server ends a connection that does not answer its pings; whether it has sent
	// one does not matter to it.
	for began := time.Now(); time.Since(began) < long; {
		if err := testenv.Pause(ctx, time.Second); err != nil {
			return err
		}
		if _, err := fmt.Fprint(conn, "PONG\r\n"); err != nil {
			return err
		}
	}
	return nil
}
