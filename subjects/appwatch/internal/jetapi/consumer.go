package jetapi

import (
	"context"
	"fmt"
	"strconv"
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
	pending  uint64 // what the server had to deliver when the consumer was made
	sub      *nats.Subscription
	arrivals chan *nats.Msg
	timer    *time.Timer
	wanted   int    // messages that are requested and have not arrived
	window   int    // how many may be
	size     int    // of the newest message, or of earlier ones if that was more
	last     uint64 // consumer sequence of the newest message
	busy     bool   // something arrived since heard
	heard    time.Time
	before   error // what the server had reported to the connection before the first request
	served   bool  // something arrived
}

// Consume makes a consumer and requests its first messages. Of cfg it reads where delivery begins, the
// subjects and HeadersOnly, and sets the rest. extra is added to the time that the server may take. The
// caller closes the consumer.
func (c *Client) Consume(ctx context.Context, stream string, cfg jetstream.ConsumerConfig, extra time.Duration) (*Consumer, error) {
	f := &Consumer{client: c, stream: stream, name: "appwatch-" + nats.NewInbox()[len(nats.InboxPrefix):], window: window, arrivals: make(chan *nats.Msg, 2*maxWindow+statusRoom)}
	cfg.Name = f.name
	cfg.AckPolicy = jetstream.AckNonePolicy
	cfg.MemoryStorage = true
	cfg.Replicas = 1
	cfg.InactiveThreshold = consumerIdle
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
	f.heard = time.Now()
	f.timer = time.NewTimer(heartbeat)
	f.before = c.nc.LastError()
	if err := f.pull(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Pending returns how many messages the server had to deliver when the consumer was made.
func (f *Consumer) Pending() uint64 { return f.pending }

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
	b := make([]byte, 0, 96)
	b = append(b, `{"batch":`...)
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, `,"expires":`...)
	b = strconv.AppendInt(b, int64(pullTime), 10)
	b = append(b, `,"idle_heartbeat":`...)
	b = strconv.AppendInt(b, int64(heartbeat), 10)
	b = append(b, '}')
	f.wanted += n
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
		f.last = d.consumer
		f.wanted--
		if size := len(msg.Data) + len(msg.Header)*64; size > f.size {
			f.size = size
		} else {
			f.size -= (f.size - size) / 64
		}
		if f.wanted <= f.window/2 {
			f.window = min(max(windowBytes/(f.size+1), 8), maxWindow)
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

// control handles a message of the server that is no message of the stream.
func (f *Consumer) control(msg *nats.Msg) error {
	switch code := msg.Header.Get("Status"); code {
	case "100", "":
		return nil
	case "408": // a request expired
		left, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			return fmt.Errorf("%w: %w", errGone, err)
		}
		f.wanted = max(f.wanted-left, 0)
		return f.pull()
	default:
		return fmt.Errorf("%w: %s %s", errGone, code, msg.Header.Get("Description"))
	}
}
