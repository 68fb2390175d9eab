package client

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

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
