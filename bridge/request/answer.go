package request

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

// Error is a failure that the requester receives.
type Error struct {
	Code subjects.Code
	// Text is one line that names the field and the value, or what was not found.
	Text string
}

func (e *Error) Error() string { return e.Text }

// Errorf makes an Error.
func Errorf(code subjects.Code, format string, args ...any) *Error {
	return &Error{Code: code, Text: fmt.Sprintf(format, args...)}
}

// The problems of reply subjects.
const (
	NoReply      = "no_reply"      // the request has no reply subject
	ReplyRefused = "reply_refused" // the reply subject is not an inbox, or too long
)

// FarPrefix is the prefix of reply subjects of requests from another account.
const FarPrefix = "_R_."

// maxReplyBytes bounds a reply subject. A NATS server ends the connection of a client whose protocol
// line is over 4096 bytes (its default max_control_line), and the client does not connect again: that of
// an answer may have a key of subjects.MaxKeyBytes beside the reply subject.
const maxReplyBytes = 1 << 10

// CheckReply returns the problem of a reply subject, empty if there is none. A service writes only
// into inboxes: below inboxPrefix, or of another account.
func CheckReply(inboxPrefix, reply string) string {
	switch {
	case reply == "":
		return NoReply
	case len(reply) > maxReplyBytes, strings.ContainsAny(reply, "*>"), !strings.HasPrefix(reply, inboxPrefix+".") && !strings.HasPrefix(reply, FarPrefix):
		return ReplyRefused
	}
	return ""
}

// AnswerTime is how long after its arrival a request has its first answer, or its refusal, at the latest,
// with all that it waits for: there is one within 4 s, and the nats CLI waits 5 s.
const AnswerTime = 3500 * time.Millisecond

// MinReply is the least limit for MaxReply: an error, with its text in the body and in a header, is
// smaller.
const MinReply = 64 << 10

// MaxReply returns how many bytes a message may have, its headers included: the limit, or max_payload
// of the server if that is less. 0 is no limit.
func MaxReply(nc *nats.Conn, limit int64) int {
	if limit == 0 {
		limit = math.MaxInt64
	}
	return int(min(limit, nc.MaxPayload()))
}

// ErrorMessage is an answer with an error.
func ErrorMessage(reply string, failure *Error) *nats.Msg {
	return &nats.Msg{Subject: reply, Data: errorBody(failure.Text), Header: nats.Header{
		subjects.HeaderServiceError:     {OneLine(failure.Text)},
		subjects.HeaderServiceErrorCode: {failure.Code.HeaderValue()},
	}}
}

const (
	headerBytes = 1 << 10
	bodyBytes   = 32 << 10
)

// OneLine is text on one line of printable characters, cut after 1 KiB, for a header.
func OneLine(text string) string { return line(text, headerBytes) }

// errorBody is text on one line like OneLine, but cut after 32 KiB.
func errorBody(text string) []byte { return []byte(line(text, bodyBytes) + "\n") }

func line(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// PlainText is an error on one line without addresses: they may hold credentials.
func PlainText(err error) string {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	if network, ok := errors.AsType[*net.OpError](err); ok {
		err = network.Err
	}
	if lookup, ok := errors.AsType[*net.DNSError](err); ok {
		err = errors.New("lookup: " + lookup.Err)
	}
	isAddress := func(word string) bool {
		local, _, _ := strings.Cut(word, "->")
		_, notPort := netip.ParseAddrPort(strings.TrimRight(local, ":,"))
		return notPort == nil || strings.Contains(word, "://")
	}
	return strings.Join(slices.DeleteFunc(strings.Fields(err.Error()), isAddress), " ")
}
