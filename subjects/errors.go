package subjects

import "errors"

// What a caller can branch on with errors.Is. Every error of this package wraps
// exactly one of them, and its text names the value and what is wrong with it.
var (
	// ErrEmptyPart: a part of an app id or of a message id, or a token, is empty.
	ErrEmptyPart = errors.New("empty part")
	// ErrTooLong: an app id is beyond MaxKeyBytes, a prefix beyond MaxPrefixBytes, or the name of a
	// stream or bucket beyond what a server takes.
	ErrTooLong = errors.New("too long")
	// ErrMalformed: a parser is given something that the builder beside it never writes.
	ErrMalformed = errors.New("malformed")
	// ErrInvalidName: a prefix or the name of a stream or bucket has an illegal byte, or an event
	// kind or an operation is not one of the contract.
	ErrInvalidName = errors.New("invalid name")
)
