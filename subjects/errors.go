package subjects

import "errors"

// What a caller can branch on with errors.Is. Every error of this package wraps
// exactly one of them, and its text names the value and what is wrong with it.
var (
	// ErrEmptyPart is wrapped when a part that must be there is the empty
	// string: a part of an app id, a token, a part of a message id.
	ErrEmptyPart = errors.New("empty part")
	// ErrTooLong is wrapped when something legal byte for byte does not fit the
	// wire: an app id beyond MaxKeyBytes, a prefix beyond MaxPrefixBytes, a
	// stream or bucket name beyond what a server takes.
	ErrTooLong = errors.New("too long")
	// ErrMalformed is wrapped when a parser is given something that the builder
	// beside it never writes.
	ErrMalformed = errors.New("malformed")
	// ErrInvalidName is wrapped when a prefix, stream or bucket name has an illegal byte, and when
	// an event kind or an operation is not one of the contract.
	ErrInvalidName = errors.New("invalid name")
)
