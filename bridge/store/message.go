package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/plan"
	"github.com/appbridge/appbridge/subjects"
)

// CodeMessageTooLarge is the error code of a stream that refuses a message for its size.
const CodeMessageTooLarge jetstream.ErrorCode = 10054

// ErrorCodeOf returns the code of a JetStream error, 0 for any other error.
func ErrorCodeOf(err error) jetstream.ErrorCode {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.ErrorCode
	}
	return 0
}

// ErrClosed reports that the NATS client stopped reconnecting, as after refused credentials.
var ErrClosed = errors.New("the NATS connection is closed")

// ErrNoMessage reports that the stream has no such message. LastMessage, MessageAt and NextMessage
// return it.
var ErrNoMessage = errors.New("no message")

// NewJetStream is a JetStream client for a domain; empty: that of the server.
func NewJetStream(nc *nats.Conn, domain string, options ...jetstream.JetStreamOpt) (jetstream.JetStream, error) {
	if domain == "" {
		return jetstream.New(nc, options...)
	}
	return jetstream.NewWithDomain(nc, domain, options...)
}

// Addressed is a copy of msg, with the same header, to publish so that a stream in the domain of js
// stores msg.
func Addressed(js jetstream.JetStream, msg *nats.Msg) *nats.Msg {
	addressed := *msg
	addressed.Subject = subjects.InDomain(js.Options().Domain, msg.Subject)
	return &addressed
}

// LastMessage reads the newest message that matches filter from the stream's leader. The client's
// own call uses direct get where a stream allows it, and then a follower that is behind may answer.
func LastMessage(ctx context.Context, js jetstream.JetStream, stream, filter string) (*Message, error) {
	return readMessage(ctx, js, stream, messageRequest{LastBySubject: filter})
}

// MessageAt reads the message at sequence from the stream's leader.
func MessageAt(ctx context.Context, js jetstream.JetStream, stream string, sequence uint64) (*Message, error) {
	return readMessage(ctx, js, stream, messageRequest{Sequence: sequence})
}

// NextMessage reads the first message that matches filter at sequence from or behind it, from the
// stream's leader.
func NextMessage(ctx context.Context, js jetstream.JetStream, stream, filter string, from uint64) (*Message, error) {
	return readMessage(ctx, js, stream, messageRequest{NextBySubject: filter, Sequence: from})
}

// OrNone returns nil, without an error, for a message that does not exist.
func OrNone(m *Message, err error) (*Message, error) {
	if errors.Is(err, ErrNoMessage) {
		return nil, nil
	}
	return m, err
}

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

func readMessage(ctx context.Context, js jetstream.JetStream, stream string, want messageRequest) (*Message, error) {
	body, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, JetStreamTimeout)
	defer cancel()
	reply, err := js.Conn().RequestWithContext(ctx, subjects.ReadMessage(js.Options().Domain, stream), body)
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
		return nil, ErrNoMessage
	case answer.Error != nil:
		return nil, fmt.Errorf("read %s: %w", want, answer.Error)
	case answer.Message == nil:
		return nil, fmt.Errorf("read %s: the answer has none", want)
	}
	m := &Message{Subject: answer.Message.Subject, Sequence: answer.Message.Sequence, Data: answer.Message.Data, Header: nats.Header{}, Stored: answer.Message.Time}
	if len(answer.Message.Header) > 0 {
		if h, err := nats.DecodeHeadersMsg(answer.Message.Header); err == nil {
			m.Header = h // else it has none, as where a consumer delivers it: it is no event
		}
	}
	return m, nil
}

// Message is a message of a stream, without Data if only headers were read.
type Message struct {
	Subject  string
	Sequence uint64
	Header   nats.Header
	Data     []byte
	Stored   time.Time // by the server
}

// Record reads the message as an event.
func (m *Message) Record(s subjects.Subjects) (*app.Record, error) {
	id, kind, err := s.ParseEvent(m.Subject)
	if err == nil {
		err = app.CheckSubject(id, m.Header)
	}
	if err != nil {
		return nil, err
	}
	return app.ReadEvent(kind, m.Sequence, m.Header, m.Data)
}

// sendRoom is room for the headers that are set when a message is sent.
const sendRoom = 64

// MaxMessage is the largest message that the server and a stream with this limit (0: none) accept.
func MaxMessage(nc *nats.Conn, limit int64) int {
	payload := nc.MaxPayload()
	if limit > 0 && limit < payload {
		payload = limit
	}
	return int(payload) - sendRoom
}

// SizeNeeded explains that a message of a size does not fit: which limit has to be raised to what.
// limit is the stream's, 0 without one.
func SizeNeeded(nc *nats.Conn, stream string, limit int64, size int) string {
	setting, is := "max_payload of the NATS server", nc.MaxPayload()
	if limit > 0 && limit < is {
		setting, is = "max_msg_size of stream "+stream, limit
	}
	return fmt.Sprintf("%s is %d bytes, at least %d are needed", setting, is, size+sendRoom)
}

// EntryOf reads a message of the bucket's stream.
func EntryOf(m *Message) *plan.Entry { return plan.ReadEntry(m.Header, m.Data, m.Sequence, m.Stored) }
