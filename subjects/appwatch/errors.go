package appwatch

import (
	"errors"

	"github.com/appbridge/appbridge/subjects/appwatch/internal/jetapi"
)

// Reasons of a [Loss] or a [Restart]: Item.Reason wraps one of them.
var (
	// ErrNotice: the stream has a notice of loss. Events with sequences in Item.Lost, some of which
	// may have been yielded, are no longer part of the history.
	ErrNotice = errors.New("the stream lost acknowledged events")
	// ErrRemoved: retention, a purge or a delete took events that had not been yielded.
	ErrRemoved = errors.New("events were removed before they were read")
	// ErrRolledBack: the stream came back with less than was read of it, and without a notice.
	ErrRolledBack = errors.New("the stream came back with less than was read of it")
	// ErrOtherStream: the stream is not the one that the position belongs to.
	ErrOtherStream = errors.New("the stream is not that of the position")
	// ErrBucket: the snapshot did not have an app, or only as of an earlier event: the bucket was being
	// written again while it was read, or somebody else had written its key. Also that of a Restart that an earlier reader was owed for
	// anything but a Loss.
	ErrBucket = errors.New("the bucket did not have every app")
)

// ErrNoBody is returned by [Item.State] and [Item.Old] with [Options.HeadersOnly].
var ErrNoBody = errors.New("only headers were read")

// Errors that end a sequence. All others are retried.
var (
	// ErrOptions: the options are not valid, and the error also wraps that of package subjects; or the
	// stream has the events of two streams under the prefix.
	ErrOptions = errors.New("invalid options")
	// ErrDenied: the user of the NATS connection has no right that is needed.
	ErrDenied = jetapi.ErrDenied
	// ErrClosed: the NATS connection is closed, and does not reconnect.
	ErrClosed = jetapi.ErrClosed
)
