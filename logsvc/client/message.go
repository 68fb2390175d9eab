package client

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Kind is the kind of a message.
type Kind int

// The kinds of messages.
const (
	Lines Kind = iota // lines of the log, of one replica
	Note              // a message of the service that is not part of the log
	Last              // the end of the stream. Nothing comes after it.
)

// End is how a stream ended.
type End struct {
	Reason subjects.LogEnd
	Lines  int64 // how many the service has sent
}

// Message is one message of a stream. A handler may keep it.
type Message struct {
	Kind     Kind
	Replica  string           // the pod of Lines, or of a Note
	Note     subjects.LogNote // the kind of a Note
	Replicas []string         // the names of all replicas, in a Note about them
	Dropped  int64            // how many lines are missing before this message
	// Body is whole lines, each with its end, in the formats text and raw; a TailLogsResponse in
	// the others.
	Body   []byte
	End    End  // is set on the Last message
	More   bool // another message is queued already, so that a handler can delay a flush
	Header nats.Header
}

// item is a message on its way to the handler.
type item struct {
	Message
	stream    string // id
	seq       uint64 // 0: a message without one
	ack       string // subject, empty for none
	size      int    // of the body as it came
	failure   *Error // the error of the service
	noService bool   // from the server: no subscriber for the request
}

// parse parses a message. An error is a violation of the protocol.
func parse(m *nats.Msg) (item, error) {
	h := m.Header
	reason := subjects.LogEnd(h.Get(subjects.HeaderLogEnd))
	seq, seqErr := headerNumber(h, subjects.HeaderLogSeq, 1)
	dropped, droppedErr := headerNumber(h, subjects.HeaderLogDropped, 0)
	lines, linesErr := headerNumber(h, subjects.HeaderLogLines, 0)
	if err := errors.Join(seqErr, droppedErr, linesErr); err != nil {
		return item{}, err
	}
	it := item{
		Message: Message{Replica: h.Get(subjects.HeaderLogReplica), Note: subjects.LogNote(h.Get(subjects.HeaderLogNote)), Dropped: dropped, Body: m.Data, Header: h},
		stream:  h.Get(subjects.HeaderLogStream),
		seq:     uint64(seq), //nolint:gosec // not negative
		ack:     m.Reply,
		size:    len(m.Data),
	}
	if it.Note != "" {
		it.Kind = Note
	}
	if list := h.Get(subjects.HeaderLogReplicas); list != "" {
		it.Replicas = strings.Split(list, ",")
	}
	if text := h.Get(subjects.HeaderServiceError); text != "" {
		// An unknown code has a text, too.
		code, _ := subjects.ParseCode(h.Get(subjects.HeaderServiceErrorCode))
		it.failure = &Error{Code: code, Text: text}
	}
	if reason != "" {
		it.Kind, it.End = Last, End{Reason: reason, Lines: lines}
	}
	it.noService = reason == "" && seq == 0 && len(m.Data) == 0 && h.Get(subjects.HeaderStatus) == subjects.StatusNoResponders
	return it, nil
}

func headerNumber(h nats.Header, name string, least int64) (int64, error) {
	text := h.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		return 0, fmt.Errorf("%s of the log service is %q: want a number from %d on", name, text, least)
	}
	return n, nil
}

var (
	// ErrNoService reports that there is no log service on the subject of the request.
	ErrNoService = errors.New("nobody serves logs")
	// ErrNoAnswer reports that the service did not send the first message in time.
	ErrNoAnswer = errors.New("no answer")
	// ErrGone reports that the service stopped during the stream, or ended it while the connection
	// of the client was lost.
	ErrGone = errors.New("the log service went away, or the connection to it was away for too long")
	// ErrGap reports that messages of the stream are missing and were not sent again.
	ErrGap = errors.New("messages of the log stream are missing")
)

// Error is an error from the service, which refused a request or ended its stream.
type Error struct {
	// Code is 0 if it is missing or unknown.
	Code subjects.Code
	// Text is one line.
	Text string
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return e.Text
	}
	return fmt.Sprintf("%s (%d %s)", e.Text, int(e.Code), e.Code)
}

// EndError is the error of a stream that the service ended early without an Error.
type EndError struct {
	Reason subjects.LogEnd
}

func (e *EndError) Error() string {
	switch e.Reason {
	case subjects.LogEndStalled:
		return "the log service ended the stream: what it sent was not acknowledged in time"
	case subjects.LogEndShutdown:
		return "the log service is shutting down; ask again"
	case subjects.LogEndLimit:
		return "a limit of the log service was reached; try again later"
	case subjects.LogEndError:
		return "the log service ended the stream after an error"
	}
	return fmt.Sprintf("the log service ended the stream: %q", string(e.Reason))
}

// endError returns the error of a stream that ended for a reason, failure if it is not nil.
func endError(reason subjects.LogEnd, failure *Error) error {
	if failure != nil {
		return failure
	}
	switch reason {
	case subjects.LogEndEOF, subjects.LogEndStopped, subjects.LogEndMaxDuration:
		return nil
	}
	return &EndError{Reason: reason}
}
