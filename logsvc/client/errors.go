package client

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

var (
	// ErrNoService says that nobody serves logs on the subject of the request.
	ErrNoService = errors.New("nobody serves logs")
	// ErrNoAnswer says that the service was there, and the first message did not
	// come in time.
	ErrNoAnswer = errors.New("no answer")
	// ErrGone says that the service went away in the middle of the stream, or took
	// this reader, whose connection was away, for one that has left.
	ErrGone = errors.New("the log service went away, or the connection to it was away for too long")
	// ErrGap says that messages of the stream are missing and were not sent again.
	ErrGap = errors.New("messages of the log stream are missing")
)

// Error is what the service said when it refused a request or could not go on.
type Error struct {
	// Code is 0 when the service gave none that is known.
	Code subjects.Code
	// Text is one line for people.
	Text string
}

func (e *Error) Error() string {
	if e.Code == 0 {
		return e.Text
	}
	return fmt.Sprintf("%s (%d %s)", e.Text, int(e.Code), e.Code)
}

// EndError is the error of a stream that the service ended early without saying
// more than the reason.
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

// endError is the error of a stream that ended for a reason, after failure if
// the service told of one.
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
