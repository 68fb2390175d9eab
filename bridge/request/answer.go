package request

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"unicode"

	"github.com/appbridge/appbridge/subjects"
)

// Error is a failure that the asker is told of.
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

// What is wrong with a reply subject.
const (
	// NoReply: there is none.
	NoReply = "no_reply"
	// ReplyRefused: it is no inbox.
	ReplyRefused = "reply_refused"
)

// FarPrefix begins the reply subjects of requests from another account.
const FarPrefix = "_R_."

// JudgeReply says what is wrong with the reply subject of a request, empty when
// it may be answered. Nobody may have a service write into another subject than an
// inbox: one below inboxPrefix, or one of another account.
func JudgeReply(inboxPrefix, reply string) string {
	switch {
	case reply == "":
		return NoReply
	case strings.ContainsAny(reply, "*>"):
		return ReplyRefused
	case strings.HasPrefix(reply, inboxPrefix+"."), strings.HasPrefix(reply, FarPrefix):
		return ""
	default:
		return ReplyRefused
	}
}

const (
	headerBytes = 1 << 10
	bodyBytes   = 32 << 10
)

// OneLine puts text on one line that fits into a header and does nothing to a
// terminal. It is cut behind 1 KiB.
func OneLine(text string) string { return line(text, headerBytes) }

// Body is the body of an answer that is an error: the text on a line, as OneLine has
// it, but cut behind 32 KiB.
func Body(text string) []byte { return []byte(line(text, bodyBytes) + "\n") }

func line(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }), " ")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// PlainText is an error in one line without addresses, which may hold more than
// is good to tell.
func PlainText(err error) string {
	var failed *url.Error
	if errors.As(err, &failed) {
		err = failed.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	var network *net.OpError
	if errors.As(err, &network) {
		err = network.Err
	}
	var lookup *net.DNSError
	if errors.As(err, &lookup) {
		err = errors.New("lookup: " + lookup.Err)
	}
	words := strings.Fields(err.Error())
	kept := words[:0]
	for _, word := range words {
		if !strings.Contains(word, "://") {
			kept = append(kept, word)
		}
	}
	return strings.Join(kept, " ")
}
