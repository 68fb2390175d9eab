package logsvc

import (
	"context"
	"time"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// LogStreamer finds the logs of apps. Pods are one source of them; another one
// can be added without touching the service. It is safe for use by many
// goroutines.
type LogStreamer interface {
	// Open finds what q names and takes what reading it needs, so that a limit
	// is met before anything was sent. ctx bounds Open alone. An error that its
	// asker should see is an *Error.
	Open(ctx context.Context, q Query) (LogStream, error)
}

// LogStream is the log of an app, or of one of its replicas, as Open found it.
type LogStream interface {
	// Org is the organization of the app.
	Org() string
	// Replicas are the names of the replicas that Open found, sorted.
	Replicas() []string
	// Run reads until everything that was asked for is handed to out (nil), ctx
	// is done (its error), or there is no way on (an *Error as a rule). What ends
	// or fails in one replica is told by Sink.Note and ends no other. It is called
	// once at most, and returns when nothing of it runs any more.
	Run(ctx context.Context, out Sink) error
	// Close gives back what Open took, after Run has returned or in its place.
	Close()
}

// Sink takes what a LogStream reads. Its methods may be called from several
// goroutines, those for one replica from one at a time. An error means that the
// stream is over and is to be returned as it is.
type Sink interface {
	// Lines takes lines of one replica, in order. Nothing of lines is kept after
	// the call. A call for lines that existed already (live is false) blocks
	// until there is room for them; live ones never wait, and push
	// out the oldest ones when the reader is too slow.
	Lines(ctx context.Context, replica string, lines []Line, live bool) error
	// Replicas tells that the replicas are others than before; names are sorted.
	Replicas(ctx context.Context, names []string) error
	// Note tells the reader something about a replica, or about the app when
	// replica is empty, in one line without the name of the replica.
	Note(ctx context.Context, note subjects.LogNote, replica, text string) error
}

// Line is one line of a log.
type Line struct {
	// Time is when it was written; zero when it carries no time.
	Time time.Time
	// Text is the line without its end, as it was written: any bytes.
	Text []byte
	// Cut counts the bytes that followed Text in a line that was too long.
	Cut int64
}

// Query is what somebody wants to read.
type Query struct {
	App subjects.AppID
	// Replica is the name of one replica; empty: all of them.
	Replica string
	// Container to read; empty: the first that is not Knative's.
	Container string
	// Tail is how many lines of each replica to begin with; negative: no limit.
	Tail int64
	// Since leaves out what was written before; zero: nothing.
	Since  time.Time
	Follow Follow
	// Previous reads the container as it was before its last restart.
	Previous bool
}

// Follow says whether to go on with what will be written.
type Follow int

const (
	// FollowRunning goes on as long as a replica runs.
	FollowRunning Follow = iota
	// FollowNever ends with what is there already.
	FollowNever
	// FollowAlways also waits for replicas to come, as long as there is the app.
	FollowAlways
)

// Error is a failure that the asker is told of.
type Error = request.Error

// Errorf makes an Error.
func Errorf(code subjects.Code, format string, args ...any) *Error {
	return request.Errorf(code, format, args...)
}
