package appsvc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/subjects"
)

// probeInterval is the interval of probes. Reads that are served at once cost no probe.
const probeInterval = 100 * time.Millisecond

// errGone ends a read whose requester disconnected.
var errGone = errors.New("the reply subject has no subscriber")

// requesters notices when the requester of a read disconnects. The NATS server answers a message to
// a subject without subscribers with the status 503. Probes are trace-only messages, which no
// subscriber receives.
type requesters struct {
	nc    *nats.Conn
	inbox string // of the server's answers

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]requester
}

type requester struct {
	reply string
	gone  func()
}

func newRequesters(nc *nats.Conn) *requesters {
	return &requesters{nc: nc, inbox: nc.NewInbox() + ".", waiting: map[uint64]requester{}}
}

// add probes a reply subject until it is removed, but not that of a request from another account: a
// probe would delete the server's response mapping.
func (r *requesters) add(reply string, gone func()) (number uint64) {
	if strings.HasPrefix(reply, request.FarPrefix) {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.waiting[r.last] = requester{reply, gone}
	return r.last
}

func (r *requesters) remove(number uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, number)
}

func (r *requesters) run(ctx context.Context) error {
	sub, err := r.nc.Subscribe(r.inbox+"*", r.receive)
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", r.inbox, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	for range retry.Ticks(ctx, probeInterval) {
		r.probe()
	}
	return nil
}

// probe probes each requester. Probes that cannot be sent are sent the next time.
func (r *requesters) probe() {
	r.mu.Lock()
	waiting := maps.Clone(r.waiting)
	r.mu.Unlock()
	for number, one := range waiting {
		_ = r.nc.PublishMsg(&nats.Msg{
			Subject: one.reply,
			Reply:   r.inbox + strconv.FormatUint(number, 10),
			// The report of the trace has no subscriber.
			Header: nats.Header{subjects.HeaderTraceOnly: {subjects.FlagTrue}, subjects.HeaderTraceDest: {r.inbox + "trace.none"}},
		})
	}
}

// receive ends the read of a requester that has no subscription.
func (r *requesters) receive(msg *nats.Msg) {
	if len(msg.Data) > 0 || msg.Header.Get(subjects.HeaderStatus) != subjects.StatusNoResponders {
		return
	}
	number, _ := strconv.ParseUint(strings.TrimPrefix(msg.Subject, r.inbox), 10, 64) // 0: none
	r.mu.Lock()
	one, ok := r.waiting[number]
	r.mu.Unlock()
	if ok {
		one.gone()
	}
}
