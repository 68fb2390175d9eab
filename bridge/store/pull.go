package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
)

// ErrPullRefused reports that the server refuses to deliver the messages of a consumer.
var ErrPullRefused = errors.New("the NATS server refuses to deliver messages")

// pullBatch is how many messages may be requested at one time: the client's own number, or the limit
// that the server gave the consumer (jetstream.limits.max_request_batch).
func pullBatch(consumer jetstream.Consumer) int {
	batch := jetstream.DefaultMaxMessages
	if info := consumer.CachedInfo(); info != nil && info.Config.MaxRequestBatch > 0 {
		batch = min(batch, info.Config.MaxRequestBatch)
	}
	return batch
}

const (
	statusConflict    = "409"
	headerDescription = "Description"
)

// pullRefused reads why a consumer delivers nothing although the stream has more. The client reads
// the server's refusal of a request and does not return it. It is nil if a request is not refused.
// The request may take messages of the consumer, so the consumer must not be used any more.
func pullRefused(ctx context.Context, js jetstream.JetStream, stream, consumer string, batch int) error {
	ctx, cancel := context.WithTimeout(ctx, quietTime)
	defer cancel()
	request, err := json.Marshal(map[string]any{"batch": batch, "no_wait": true})
	if err != nil {
		return nil //nolint:nilerr // numbers can be encoded
	}
	nc := js.Conn()
	reply, err := nc.SubscribeSync(nc.NewInbox())
	if err != nil {
		return nil //nolint:nilerr // the connection is closed, which the caller finds
	}
	defer func() { _ = reply.Unsubscribe() }()
	if err := nc.PublishRequest(subjects.PullMessages(js.Options().Domain, stream, consumer), reply.Subject, request); err != nil {
		return nil //nolint:nilerr // likewise
	}
	msg, err := reply.NextMsgWithContext(ctx)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("consume %s: %w: the consumer is gone", stream, ErrPullRefused)
	case err != nil || len(msg.Data) > 0 || msg.Header.Get(subjects.HeaderStatus) != statusConflict:
		return nil //nolint:nilerr // nothing is refused
	}
	return fmt.Errorf("consume %s: %w: %s", stream, ErrPullRefused, msg.Header.Get(headerDescription))
}
