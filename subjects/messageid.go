package subjects

import (
	"fmt"
	"strconv"
	"strings"
)

// MessageID identifies an event: the object's uid, the resourceVersion observed,
// and the stream sequence of the app's previous event. The last part is what
// tells a retry, which keeps the id, from the same state at another place in
// the app's history. The id is the value of Nats-Msg-Id and of ce-id.
type MessageID struct {
	// UID is the uid of the Knative Service.
	UID string
	// ResourceVersion is the version of the Knative Service.
	ResourceVersion string
	// PreviousSequence is the stream sequence of this app's previous event, 0 when there is none.
	PreviousSequence uint64
}

// String is "<uid>/<resourceVersion>/<sequence>". The values that Kubernetes makes stand as they
// are. A byte that would break the form, or that a header cannot carry, is written "=XX" with two
// upper-case hex digits: controls, space, double quote, percent, slash, equals sign, and all beyond
// ASCII. So two different ids never look the same.
func (id MessageID) String() string {
	return escape(id.UID, '=', isMessageIDByte) + "/" +
		escape(id.ResourceVersion, '=', isMessageIDByte) + "/" +
		strconv.FormatUint(id.PreviousSequence, 10)
}

// ParseMessageID is the inverse of MessageID.String. It accepts what String
// writes for an id with a uid and a version, and nothing else: an empty part
// wraps ErrEmptyPart, everything else ErrMalformed.
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
	sequence, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil || strconv.FormatUint(sequence, 10) != parts[2] {
		return MessageID{}, fmt.Errorf("%w: sequence %s", ErrMalformed, quote(parts[2]))
	}
	return MessageID{UID: parts[0], ResourceVersion: parts[1], PreviousSequence: sequence}, nil
}

// isMessageIDByte reports whether c stands for itself in a message id. Double
// quote and percent are legal in a NATS header, but CloudEvents would have them
// percent-encoded there, and ce-id and Nats-Msg-Id are to be the same text.
func isMessageIDByte(c byte) bool {
	return '!' <= c && c <= '~' && c != '"' && c != '%' && c != '/' && c != '='
}
