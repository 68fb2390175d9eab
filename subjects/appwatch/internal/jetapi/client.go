package jetapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// The requests of the JetStream API that a reader makes. Each is a right that deploy/nats gives to the
// users of a mirror. The leader of the stream answers them; a request for what the stream is, any
// member while there is no leader.
const (
	apiStreamInfo     = "STREAM.INFO."
	apiMessageGet     = "STREAM.MSG.GET."
	apiConsumerCreate = "CONSUMER.CREATE."
	apiConsumerNext   = "CONSUMER.MSG.NEXT."
	apiConsumerDelete = "CONSUMER.DELETE."
)

const (
	// requestTime is how long a request may take. It is sent again after resendTime: a server that
	// starts drops some without an answer.
	requestTime = 2 * time.Second
	resendTime  = 250 * time.Millisecond
)

// Client is the JetStream API as one reader reaches it. One goroutine at a time may use it and its
// consumers.
type Client struct {
	nc     *nats.Conn
	prefix string
	status chan nats.Status // changes of the connection
	denied map[string]int   // by right: requests in a row that the server refused

	inbox   string // of answers, with a token for each request behind it
	sub     *nats.Subscription
	answers chan *nats.Msg
	count   uint64

	orphans []string // consumers to remove once there is a connection
	batch   int      // how many messages the server permits to request at once, 0: not known
}

// New returns a client for the connection, the domain and the API prefix of js. It listens to the
// status of the connection until Close. js is not changed, and can be shared.
func New(js jetstream.JetStream) *Client {
	opts := js.Options()
	prefix := subjects.JetStreamAPI(opts.Domain)
	if opts.APIPrefix != "" {
		prefix = strings.TrimSuffix(opts.APIPrefix, ".") + "."
	}
	nc := js.Conn()
	return &Client{nc: nc, prefix: prefix, status: nc.StatusChanged(), denied: map[string]int{}}
}

// Close ends what New and the requests began on the connection, which stays open. Consumers are closed
// before it.
func (c *Client) Close() {
	c.closeInbox()
	c.nc.RemoveStatusListener(c.status)
}

// Changes receives the changes of the connection's status. A request, or a wait for a message, that
// receives one ends with an error.
func (c *Client) Changes() <-chan nats.Status { return c.status }

// WaitConnected waits until the connection is up, and drops the changes of earlier ones. It calls
// waiting with [nats.ErrDisconnected] before each wait. The error is [ErrClosed], or that of ctx.
func (c *Client) WaitConnected(ctx context.Context, waiting func(error)) error {
	for !c.nc.IsConnected() {
		if c.nc.IsClosed() {
			return ErrClosed
		}
		waiting(nats.ErrDisconnected)
		select {
		case <-c.status:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for {
		select {
		case <-c.status: // of an earlier connection
		default:
			return nil
		}
	}
}

// request sends a request and decodes its answer. extra is added to the time that it may take.
func (c *Client) request(ctx context.Context, extra time.Duration, subject string, body, answer any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	before, right := c.nc.LastError(), subject
	if strings.HasPrefix(subject, apiConsumerCreate) { // the consumer has another name each time
		right = strings.Join(strings.SplitN(subject, ".", 4)[:3], ".")
	}
	reply, err := c.exchange(ctx, extra, subject, data, before)
	if err != nil {
		if refusal := c.refusal(subject, before); refusal != nil {
			return c.refused(right, subject, refusal)
		}
		if refusal := c.report(c.inbox+".*", before); refusal != nil {
			c.closeInbox() // the next request tries again
			return c.refused(inboxRight, subject, refusal)
		}
		return c.failed(subject, err)
	}
	delete(c.denied, right)
	delete(c.denied, inboxRight)
	var failure struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &failure); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	if failure.Error != nil {
		if failure.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return ErrNoMessage
		}
		return fmt.Errorf("%s: %w", subject, failure.Error)
	}
	if err := json.Unmarshal(reply.Data, answer); err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	return nil
}

// answersRoom is room for answers that come too late.
const answersRoom = 64

// exchange sends a request and waits for its answer, unless the connection changes: then the answer
// may have been on its way to the old one. The connection's own request would wait for its time-out.
func (c *Client) exchange(ctx context.Context, extra time.Duration, subject string, data []byte, before error) (*nats.Msg, error) {
	if c.sub == nil {
		c.inbox, c.answers = c.nc.NewInbox(), make(chan *nats.Msg, answersRoom)
		var err error
		if c.sub, err = c.nc.ChanSubscribe(c.inbox+".*", c.answers); err != nil {
			c.sub = nil
			return nil, err
		}
	}
	c.count++
	inbox := c.inbox + "." + strconv.FormatUint(c.count, 10)
	if err := c.nc.PublishRequest(c.prefix+subject, inbox, data); err != nil {
		return nil, err
	}
	deadline, again := time.Now().Add(requestTime+extra), resendTime+extra
	timer := time.NewTimer(again)
	defer timer.Stop()
	for {
		select {
		case msg := <-c.answers:
			if msg.Subject != inbox {
				continue // an earlier request's
			}
			if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return msg, nil
		case status := <-c.status:
			if status == nats.CLOSED {
				return nil, nats.ErrConnectionClosed
			}
			return nil, errReconnected
		case <-timer.C:
			if time.Now().After(deadline) || c.refusal(subject, before) != nil || c.report(c.inbox+".*", before) != nil {
				return nil, nats.ErrTimeout
			}
			if err := c.nc.PublishRequest(c.prefix+subject, inbox, data); err != nil {
				return nil, err
			}
			timer.Reset(again)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (c *Client) closeInbox() {
	if c.sub != nil {
		_ = c.sub.Unsubscribe()
		c.sub = nil
	}
}

// maxOrphans is how many consumers are remembered. The server removes the others by itself.
const maxOrphans = 16

// remove requests the removal of a consumer, without waiting for the answer. The request is sent again
// before the next consumer is made: this one may be lost with its connection.
func (c *Client) remove(consumer string) {
	if len(c.orphans) == maxOrphans {
		c.orphans = c.orphans[1:]
	}
	c.orphans = append(c.orphans, consumer)
	if c.nc.IsConnected() {
		_ = c.nc.PublishRequest(c.prefix+apiConsumerDelete+consumer, c.nc.NewInbox(), nil)
	}
}

// removeOrphans requests the removal of the consumers of earlier connections.
func (c *Client) removeOrphans() {
	for _, orphan := range c.orphans {
		_ = c.nc.PublishRequest(c.prefix+apiConsumerDelete+orphan, c.nc.NewInbox(), nil)
	}
}

// failed is the error of a request without an answer.
func (c *Client) failed(subject string, err error) error {
	if c.nc.IsClosed() || errors.Is(err, nats.ErrConnectionClosed) {
		return ErrClosed
	}
	return fmt.Errorf("%s: %w", subject, err)
}
