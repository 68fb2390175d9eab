package subjects

import (
	"fmt"
	"strconv"
	"strings"
)

// MessageID identifies an event. It is the value of Nats-Msg-Id and of ce-id. The sequence is the
// difference between a retry, which keeps the id, and the same state later in the app's history.
type MessageID struct {
	UID, ResourceVersion string // of the Knative Service
	// PreviousSequence is the stream sequence of this app's previous event, 0 when there is none.
	PreviousSequence uint64
}

// String is "<uid>/<resourceVersion>/<sequence>". A byte that would break the form, or that a
// header cannot carry, is written "=XX" with two upper-case hex digits: controls, space, double
// quote, percent, slash, equals sign, and all beyond ASCII. So two different ids never look the
// same.
func (id MessageID) String() string {
	return escape(id.UID, '=', isMessageIDByte) + "/" +
		escape(id.ResourceVersion, '=', isMessageIDByte) + "/" +
		strconv.FormatUint(id.PreviousSequence, 10)
}

// ParseMessageID is the inverse of MessageID.String, for an id with a uid and a version. The error
// wraps ErrEmptyPart or ErrMalformed.
func ParseMessageID(s string) (MessageID, error) {
	id, err := parseMessageID(s)
	if err != nil {
		return MessageID{}, fmt.Errorf("parse message id %s: %w", quote(s), err)
	}
	return id, nil
}

func parseMessageID(s string) (MessageID, error) {
	parts := strings.SplitN(s, "/", 4)
	if len(parts) != 3 {
		return MessageID{}, fmt.Errorf("%w: not of the form uid/resourceVersion/sequence", ErrMalformed)
	}
	for i, name := range []string{"uid", "resourceVersion"} {
		if parts[i] == "" {
			return MessageID{}, fmt.Errorf("%s: %w", name, ErrEmptyPart)
		}
		part, err := unescape(parts[i], isMessageIDByte)
		if err != nil {
			return MessageID{}, fmt.Errorf("%s: %w", name, err)
		}
		parts[i] = part
	}
	sequence, err := parseSequence(parts[2])
	return MessageID{UID: parts[0], ResourceVersion: parts[1], PreviousSequence: sequence}, err
}

// parseSequence reads a decimal number in the one form that it has.
func parseSequence(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%w: sequence %s", ErrMalformed, quote(text))
	}
	return n, nil
}

// isMessageIDByte reports whether c stands for itself in a message id. CloudEvents would have
// double quote and percent percent-encoded in a header, and ce-id is to be the same text as
// Nats-Msg-Id.
func isMessageIDByte(c byte) bool {
	return '!' <= c && c <= '~' && c != '"' && c != '%' && c != '/' && c != '='
}
