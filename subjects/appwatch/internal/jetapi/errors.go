package jetapi

import "errors"

// Errors that callers branch on. All others can be retried.
var (
	// ErrDenied: the user of the NATS connection has no right that is needed.
	ErrDenied = errors.New("permission denied")
	// ErrClosed: the NATS connection is closed, and does not reconnect.
	ErrClosed = errors.New("the NATS connection is closed")
	// ErrNoMessage: the stream has no such message.
	ErrNoMessage = errors.New("no such message")
)

var (
	// errNoLeader reports that a stream has no leader. What a member answers meanwhile may be too old.
	errNoLeader = errors.New("the stream has no leader")

	errSilent      = errors.New("the consumer is silent")
	errGone        = errors.New("the consumer is gone")
	errRefused     = errors.New("the server refused a request for messages")
	errMissed      = errors.New("a message of the consumer did not arrive")
	errReconnected = errors.New("the NATS connection was made again")
)
