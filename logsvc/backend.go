package logsvc

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/logsvc/logline"
	"github.com/appbridge/appbridge/subjects"
)

// LogStreamer finds the logs of apps. Package pods is one; another one is a package beside it, given
// to the service where package main starts that. The service refuses PERSISTED_ONLY itself: an
// archive needs the source in Query too. A LogStreamer is safe for use by many goroutines.
type LogStreamer interface {
	// Open finds the logs of q and takes the slots for reading them, so that a limit applies
	// before anything is sent. ctx bounds Open alone. Errors for the requester are *request.Error.
	Open(ctx context.Context, q Query) (LogStream, error)
}

// LogStream is the log of an app, or of one of its replicas, as Open found it.
type LogStream interface {
	// Org is the organization of the app.
	Org() string
	// Replicas are the names of the replicas that Open found, sorted.
	Replicas() []string
	// Run reads until out has everything (nil), ctx is done (its error), or nothing can be
	// read (usually a *request.Error). A replica that ends or fails does not affect the others: the
	// reader gets a Note. Run is called at most once and returns when all its goroutines have
	// ended.
	Run(ctx context.Context, out Sink) error
	// Close releases the slots, after Run has returned or without a Run.
	Close()
}

// Sink receives what a LogStream reads. Its methods may be called concurrently, but not for the
// same replica. An error ends the stream; Run returns it unchanged.
type Sink interface {
	// Lines receives lines of one replica, in order. It does not keep lines after the call. A
	// call for lines that exist already (live is false) blocks until there is room for them.
	// Live lines never block: when the reader is too slow, they replace the oldest ones. place is
	// behind the last of the lines, and empty if the query has no Positions. A call without lines
	// reports the place alone.
	Lines(ctx context.Context, replica string, lines []Line, live bool, place string) error
	// Replicas receives the names of the replicas after a change, sorted.
	Replicas(ctx context.Context, names []string) error
	// Note sends the reader one note of one line about replicas, or about the app without any. The text
	// does not have their names. It does not keep replicas after the call.
	Note(ctx context.Context, note subjects.LogNote, replicas []string, text string) error
}

// Line is one line of a log.
type Line = logline.Line

// Query selects the logs to read.
type Query struct {
	App       subjects.AppID
	Replica   string        // the name of one; empty: all of them
	Container string        // to read; empty: the app's
	Tail      int64         // how many existing lines of each replica to read; negative: all
	Since     time.Time     // skips lines that were written before it; zero: none
	Age       time.Duration // skips lines that are older by the clock of their node; zero: none
	Follow    Follow
	Previous  bool // reads the log of the container before its last restart
	// Positions has the Sink get the place behind the lines of each call.
	Positions bool
	// Resume has the positions of replicas that are read behind them. Those that it does not have are
	// read from their first line. A replica whose position is zero is read as if Resume were nil: then
	// Tail, Since and Age apply to each.
	Resume map[string]Position
	// Until is when a query that does not follow ends. The reader has a note on each replica that is
	// not read by then. Zero: it has no end.
	Until time.Time
}

// Position is a place in the log of a replica, and how many lines after it were sent.
type Position struct {
	Place string // as Sink.Lines had it, without spaces; opaque to the service
	Lines int
}

// String returns the form of the header Flyte-Log-Position.
func (p Position) String() string { return p.Place + "." + strconv.Itoa(p.Lines) }

// parsePosition is the opposite of String. The empty text is the zero Position.
func parsePosition(text string) (p Position, ok bool) {
	if text == "" {
		return Position{}, true
	}
	dot := strings.LastIndexByte(text, '.')
	if dot <= 0 {
		return Position{}, false
	}
	lines, err := strconv.ParseUint(text[dot+1:], 10, 31)
	p = Position{Place: text[:dot], Lines: int(lines)} //nolint:gosec // 31 bits
	return p, err == nil && len(text) <= subjects.MaxLogPositionBytes && p.String() == text
}

// PositionError is the error of Open for a replica whose position in Query.Resume is invalid.
func PositionError(replica, position string) *request.Error {
	return request.Errorf(subjects.CodeInvalidArgument, "resume: %s", invalidPosition(replica, position))
}

func invalidPosition(replica, position string) string {
	return fmt.Sprintf("replica %s: %s: want the value of a %s", kservice.Quote(replica), kservice.Quote(position), subjects.HeaderLogPosition)
}

// Follow selects whether lines are read as they are written.
type Follow int

// What a query follows.
const (
	FollowRunning Follow = iota // as long as a replica runs
	FollowNever                 // the existing lines only
	FollowAlways                // also new replicas, as long as the app exists
)
