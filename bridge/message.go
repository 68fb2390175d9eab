package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// codeMessageTooLarge is the error code of a stream that refuses a message for its size.
const codeMessageTooLarge jetstream.ErrorCode = 10054

func errorCode(err error) jetstream.ErrorCode {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return api.ErrorCode
	}
	return 0
}

// errClosed reports that the NATS client has given up, as it does when the server refuses its
// credentials.
var errClosed = errors.New("the NATS connection is closed")

// errNoMessage reports that the stream has no such message.
var errNoMessage = errors.New("no message")

// lastMessage reads the newest message that matches filter from the stream's
// leader. The client's own call uses direct get where a stream allows it, and
// then a follower that is behind may answer.
func lastMessage(ctx context.Context, nc *nats.Conn, stream, filter string) (*storedMessage, error) {
	return readMessage(ctx, nc, stream, messageRequest{LastBySubject: filter})
}

// nextMessage reads the first message at sequence or after it that matches
// filter, from the stream's leader.
func nextMessage(ctx context.Context, nc *nats.Conn, stream, filter string, sequence uint64) (*storedMessage, error) {
	return readMessage(ctx, nc, stream, messageRequest{NextBySubject: filter, Sequence: sequence})
}

// messageAt reads the message at sequence from the stream's leader.
func messageAt(ctx context.Context, nc *nats.Conn, stream string, sequence uint64) (*storedMessage, error) {
	return readMessage(ctx, nc, stream, messageRequest{Sequence: sequence})
}

// messageRequest asks for one message of a stream.
type messageRequest struct {
	LastBySubject string `json:"last_by_subj,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
	Sequence      uint64 `json:"seq,omitempty"`
}

func (r messageRequest) String() string {
	switch {
	case r.LastBySubject != "":
		return "last message of " + r.LastBySubject
	case r.NextBySubject != "":
		return fmt.Sprintf("next message of %s from %d", r.NextBySubject, r.Sequence)
	default:
		return fmt.Sprintf("message %d", r.Sequence)
	}
}

func readMessage(ctx context.Context, nc *nats.Conn, stream string, want messageRequest) (*storedMessage, error) {
	body, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, jetStreamTimeout)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", want, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Header   []byte    `json:"hdrs"`
			Data     []byte    `json:"data"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read %s: %w", want, err)
	}
	switch {
	case answer.Error != nil && answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound:
		return nil, errNoMessage
	case answer.Error != nil:
		return nil, fmt.Errorf("read %s: %w", want, answer.Error)
	case answer.Message == nil:
		return nil, fmt.Errorf("read %s: the answer has none", want)
	}
	m := &storedMessage{subject: answer.Message.Subject, sequence: answer.Message.Sequence, data: answer.Message.Data, header: nats.Header{}, stored: answer.Message.Time}
	if len(answer.Message.Header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return nil, fmt.Errorf("read %s: %w", want, err)
		}
	}
	return m, nil
}

// storedMessage is a message of a stream.
type storedMessage struct {
	subject  string
	sequence uint64
	header   nats.Header
	data     []byte
	stored   time.Time
}

// record reads the message as an event.
func (m *storedMessage) record(s subjects.Subjects) (*app.Record, error) {
	_, kind, err := s.ParseEvent(m.subject)
	if err != nil {
		return nil, err
	}
	return app.ReadEvent(kind, m.sequence, m.header, m.data)
}

// fenceBytes is room for the headers that are set when a message is sent.
const fenceBytes = 64

// maxMessage is the largest message in bytes that the server and a stream accept. limit is that of
// the stream; 0 or less: none.
func maxMessage(nc *nats.Conn, limit int64) int {
	payload := nc.MaxPayload()
	if limit > 0 && limit < payload {
		payload = limit
	}
	return int(payload) - fenceBytes
}
