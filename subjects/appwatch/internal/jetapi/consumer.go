package jetapi

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// window is how many messages are requested at first; maxWindow and windowBytes bound what the
	// server sends ahead once their size is known.
	window      = 64
	maxWindow   = 1024
	windowBytes = 8 << 20
	// heartbeat is how often the server sends a sign of life while there is nothing to deliver, and
	// silence how long a reader waits for one.
	heartbeat = time.Second
	silence   = 2500 * time.Millisecond
	// pullTime is how long a request for messages stays open.
	pullTime = 30 * time.Second
	// firstHeartbeat and firstPullTime are those of a consumer's first request: a reader that has
	// nothing to read soon learns that.
	firstHeartbeat = 50 * time.Millisecond
	firstPullTime  = time.Second
	// consumerIdle is how long the server keeps a consumer that nothing is requested from.
	consumerIdle = 30 * time.Second
	// statusRoom is room for messages that are not the stream's: heartbeats and ends of requests.
	statusRoom = 256
)

// Consumer reads one ephemeral consumer of a stream. It starts no goroutine: the connection's own puts
// messages into a channel, which has room for all that is requested. The goroutine that uses the
// Client uses it.
type Consumer struct {
	client   *Client
	stream   string
	name     string
	pending  uint64 // what the server had to deliver behind the newest message
	sub      *nats.Subscription
	arrivals chan *nats.Msg
	timer    *time.Timer
	wanted   int    // messages that are requested and have not arrived
	pulled   int    // messages of the newest request
	window   int    // how many may be requested
	limit    int    // upper bound of window
	size     int    // of the newest message, or of earlier ones if that was more
	last     uint64 // consumer sequence of the newest message
	passed   uint64 // stream sequence up to which nothing else is delivered, as the server reported
	busy     bool   // something arrived since heard
	heard    time.Time
	before   error // what the server had reported to the connection before the first request
	served   bool  // something arrived
}

// Consume makes a consumer and requests its first messages. Of cfg it reads where delivery begins, the
// subjects, HeadersOnly, and InactiveThreshold as an upper bound, and sets the rest. extra is added to
// the time that the server may take. The caller closes the consumer.
func (c *Client) Consume(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, extra time.Duration) (*Consumer, error) {
	f := &Consumer{client: c, stream: stream, name: "appwatch-" + nats.NewInbox()[len(nats.InboxPrefix):], window: window, limit: maxWindow, arrivals: make(chan *nats.Msg, 2*maxWindow+statusRoom)}
	cfg.Name = f.name
	cfg.AckPolicy = jetstream.AckNonePolicy
	cfg.MemoryStorage = true
	cfg.Replicas = 1
	if cfg.InactiveThreshold <= 0 || cfg.InactiveThreshold > consumerIdle {
		cfg.InactiveThreshold = consumerIdle
	}
	subject := apiConsumerCreate + stream + "." + f.name
	if len(cfg.FilterSubjects) == 1 {
		cfg.FilterSubject, cfg.FilterSubjects = cfg.FilterSubjects[0], nil
		subject += "." + cfg.FilterSubject
	}
	var err error
	if f.sub, err = c.nc.ChanSubscribe(c.nc.NewInbox(), f.arrivals); err != nil {
		return nil, c.failed(subject, err)
	}
	c.removeOrphans()
	var made jetstream.ConsumerInfo
	if err := c.request(ctx, extra, subject, struct {
		Stream string                   `json:"stream_name"`
		Config jetstream.ConsumerConfig `json:"config"`
		Action string                   `json:"action"`
	}{stream, cfg, "create"}, &made); err != nil {
		f.Close()
		return nil, fmt.Errorf("consume %s: %w", stream, err)
	}
	c.orphans = c.orphans[:0] // their removal was on the same connection, before this answer
	f.pending = made.NumPending
	f.bound(c.batch)
	f.bound(made.Config.MaxRequestBatch) // that of the server, if it has one
	f.heard = time.Now()
	f.timer = time.NewTimer(heartbeat)
	f.before = c.nc.LastError()
	if err := f.pull(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Pending returns how many messages the server had to deliver when it delivered the newest one, or
// when the consumer was made.
func (f *Consumer) Pending() uint64 { return f.pending }

// Passed returns the sequence of the stream up to which the consumer has looked for messages: what it
// did not deliver was not selected, or is not there. The server reports that with its heartbeats, in
// order with the messages. It is 0 before the first heartbeat.
func (f *Consumer) Passed() uint64 { return f.passed }

// bound limits a request to a number of messages, unless that is 0.
func (f *Consumer) bound(limit int) {
	if limit > 0 {
		f.limit = min(f.limit, limit)
		f.window = min(f.window, f.limit)
	}
}

// Close removes the consumer, without waiting for an answer. If the request is lost, it is sent again
// before the Client makes another consumer, or the server removes this one after consumerIdle.
func (f *Consumer) Close() {
	_ = f.sub.Unsubscribe()
	if f.timer != nil {
		f.timer.Stop()
	}
	f.client.remove(f.stream + "." + f.name)
}

// pull requests as many messages as fit into the window once half of it has arrived.
func (f *Consumer) pull() error {
	if f.wanted > f.window/2 {
		return nil
	}
	n := f.window - f.wanted
	beat, expires := heartbeat, pullTime
	if f.pulled == 0 {
		beat, expires = firstHeartbeat, firstPullTime
	}
	b := make([]byte, 0, 96)
	b = append(b, `{"batch":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, `,"expires":`...)
	b = strconv.AppendInt(b, int64(expires), 10)
	b = append(b, `,"idle_heartbeat":`...)
	b = strconv.AppendInt(b, int64(beat), 10)
	b = append(b, '}')
	f.wanted, f.pulled = f.wanted+n, n
	if err := f.client.nc.PublishRequest(f.client.prefix+apiConsumerNext+f.stream+"."+f.name, f.sub.Subject, b); err != nil {
		return f.client.failed(apiConsumerNext+f.stream, err)
	}
	return nil
}

// Next returns the next message, or a nil message after wait without one. Any error ends the consumer:
// ErrDenied, ErrClosed, that of ctx, or one of a message that is missing, of a server that is silent or
// of a connection that changed.
func (f *Consumer) Next(ctx context.Context, wait time.Duration) (*nats.Msg, Delivery, error) {
	var deadline time.Time
	for {
		var msg *nats.Msg
		select {
		case msg = <-f.arrivals:
		default:
			now := time.Now()
			if deadline.IsZero() {
				deadline = now.Add(wait)
			}
			if f.busy {
				f.busy, f.heard = false, now
			}
			var err error
			if msg, err = f.wait(ctx, now, deadline); msg == nil || err != nil {
				return nil, Delivery{}, err
			}
		}
		f.busy = true
		if !f.served {
			f.served = true
			delete(f.client.denied, apiConsumerNext+f.stream)
		}
		d, ok := parseReply(msg.Reply)
		if !ok {
			if err := f.control(msg); err != nil {
				return nil, Delivery{}, err
			}
			continue
		}
		if d.consumer != f.last+1 {
			return nil, Delivery{}, errMissed
		}
		f.last, f.pending = d.consumer, d.Pending
		f.wanted--
		if size := len(msg.Data) + len(msg.Header)*64; size > f.size {
			f.size = size
		} else {
			f.size -= (f.size - size) / 64
		}
		if f.wanted <= f.window/2 {
			f.window = min(max(windowBytes/(f.size+1), 8), f.limit)
			if err := f.pull(); err != nil {
				return nil, Delivery{}, err
			}
		}
		return msg, d, nil
	}
}

// wait blocks until something arrives, and returns nil at the deadline.
func (f *Consumer) wait(ctx context.Context, now, deadline time.Time) (*nats.Msg, error) {
	quiet := f.heard.Add(silence)
	f.timer.Reset(max(min(deadline.Sub(now), quiet.Sub(now)), 0))
	select {
	case msg := <-f.arrivals:
		return msg, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case status := <-f.client.status:
		if status == nats.CLOSED {
			return nil, ErrClosed
		}
		// What was on its way to the old connection is gone, and so are the requests.
		return nil, errReconnected
	case <-f.timer.C:
		if !f.served {
			subject := apiConsumerNext + f.stream + "." + f.name
			if refusal := f.client.refusal(subject, f.before); refusal != nil {
				return nil, f.client.refused(apiConsumerNext+f.stream, subject, refusal)
			}
		}
		if quiet.Before(deadline) {
			return nil, errSilent
		}
		return nil, nil
	}
}

// batchRefused begins the refusal of a request for more messages than the server permits.
const batchRefused = "Exceeded MaxRequestBatch of "

// control handles a message of the server that is no message of the stream.
func (f *Consumer) control(msg *nats.Msg) error {
	description := msg.Header.Get("Description")
	switch code := msg.Header.Get("Status"); code {
	case "":
		return nil
	case "100":
		if consumer, ok := decimal(msg.Header.Get("Nats-Last-Consumer")); ok && consumer == f.last {
			if passed, ok := decimal(msg.Header.Get("Nats-Last-Stream")); ok {
				f.passed = passed
			}
		}
		return nil
	case "409":
		text, refused := strings.CutPrefix(description, batchRefused)
		if !refused {
			return fmt.Errorf("%w: %s %s", errGone, code, description)
		}
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 || limit >= f.pulled {
			return fmt.Errorf("%w: %s", errRefused, description)
		}
		f.client.batch = limit
		f.bound(limit)
		f.wanted -= f.pulled
		return f.pull()
	case "408": // a request expired
		left, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
		f.wanted = max(f.wanted-left, 0)
		return f.pull()
	default:
		return fmt.Errorf("%w: %s %s", errGone, code, description)
	}
}
