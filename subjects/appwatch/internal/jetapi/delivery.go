package jetapi

import (
	"strconv"
	"strings"
)

// Delivery is what the server reports of a message that a consumer delivers.
type Delivery struct {
	Sequence uint64 // in the stream that is read
	Pending  uint64 // how many messages follow
	Stored   int64  // when the server stored it: Unix time in nanoseconds
	consumer uint64 // sequence of the consumer: how many messages it has delivered
}

const ackPrefix = "$JS.ACK."

// parseReply reads the reply subject of a message that a consumer delivered. ok is false for any
// other message. It does what Msg.Metadata does, without its allocations.
//
//	$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<time>.<pending>[.<token>]
func parseReply(reply string) (d Delivery, ok bool) {
	rest, ok := strings.CutPrefix(reply, ackPrefix)
	if !ok {
		return d, false
	}
	dots := strings.Count(rest, ".")
	skip := 2
	if dots >= 8 {
		skip = 4
	} else if dots != 6 {
		return d, false
	}
	for range skip + 1 { // and how often it was delivered
		_, rest, _ = strings.Cut(rest, ".")
	}
	var numbers [4]uint64
	for i := range numbers {
		var word string
		word, rest, _ = strings.Cut(rest, ".")
		n, valid := decimal(word)
		if !valid {
			return Delivery{}, false
		}
		numbers[i] = n
	}
	return Delivery{Sequence: numbers[0], consumer: numbers[1], Stored: int64(numbers[2]), Pending: numbers[3]}, true //nolint:gosec // a time that the server wrote
}

// decimal parses digits.
func decimal(s string) (uint64, bool) {
	if s == "" || len(s) > 20 {
		return 0, false
	}
	if len(s) > 18 {
		n, err := strconv.ParseUint(s, 10, 64)
		return n, err == nil
	}
	var n uint64
	for i := range len(s) {
		c := s[i] - '0'
		if c > 9 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	return n, true
}
