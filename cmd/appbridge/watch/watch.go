package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/cmd/appbridge/appview"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
)

// Form is the form of the output.
type Form int

// The forms of the output.
const (
	Table Form = iota
	Wide       // a table with more columns
	JSON       // a document on each line
	YAML       // documents
	Name       // project/domain/app, a line each
)

// Options is what to show. The zero value is a table of every app.
type Options struct {
	// Reader has the names and the filters, and where to begin.
	Reader appwatch.Options
	Form   Form
	Events bool      // a line for each event instead of a table
	Once   bool      // end with the present
	At     time.Time // the apps as they were; zero: as they are
	Until  *Until    // end with a state of one app; nil: with the context
	// Timeout bounds Once, At and Until; 0: no limit.
	Timeout time.Duration
	Color   bool // of lines; a Terminal has it for itself
}

// Live reports whether the options are those of a table that goes on.
func (o Options) Live() bool {
	return o.At.IsZero() && o.Until == nil && !o.Once && o.Form <= Wide && !o.Events && o.Reader.Since.IsZero() && o.Reader.From.IsZero()
}

// Output is where it is shown.
type Output struct {
	Lines io.Writer // standard output
	Notes io.Writer // standard error
	// Terminal is where a live table is drawn; nil: it is printed in lines.
	Terminal *Terminal
	// Down is why there is no connection to NATS, empty while there is one.
	Down func() string
	// Now is the time that ages are counted from.
	Now func() time.Time
}

// Why a watch ends early. The caller has a code for each.
var (
	ErrTimeout = errors.New("timed out")          // Options.Timeout is over
	ErrFailed  = errors.New("the app has failed") // before it came to the state that was waited for
	ErrGone    = errors.New("no such app")        // likewise, or there is no such app
)

// Run shows apps until it is done or ctx ends. Its error wraps ErrTimeout, ErrFailed or ErrGone, is
// that of the output, or of what reads the stream. When ctx ends it is nil; with Once, At or Until,
// which were not done, it is that of ctx.
func Run(ctx context.Context, js jetstream.JetStream, opts Options, out Output) error {
	w := &watch{Options: opts, Output: out, js: js}
	w.Reader.OnRetry = w.retrying
	ends := opts.Once || !opts.At.IsZero() || opts.Until != nil
	if ends && opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, opts.Timeout, ErrTimeout)
		defer cancel()
	}
	err := w.run(ctx)
	ended := ctx.Err()
	switch {
	case !ends || w.done || ended == nil || err != nil && !errors.Is(err, ended):
		return err
	case errors.Is(context.Cause(ctx), ErrTimeout):
		return fmt.Errorf("%w after %s%s", ErrTimeout, opts.Timeout, w.why())
	default:
		return ended
	}
}

func (w *watch) run(ctx context.Context) error {
	past := !w.Reader.Since.IsZero() || !w.Reader.From.IsZero()
	switch {
	case !w.At.IsZero():
		return w.instant(ctx)
	case w.Until != nil:
		return w.wait(ctx)
	case w.Once && !past:
		return w.once(ctx)
	case !w.Live():
		return w.lines(ctx)
	case w.Terminal != nil:
		return w.live(ctx)
	default:
		return w.plain(ctx)
	}
}

// watch is one run.
type watch struct {
	Options
	Output
	js   jetstream.JetStream
	done bool // what was to be shown was shown

	owed    bool   // the snapshot is to be read again, once a loss is repaired
	state   string // of the app that was waited for, to follow a text
	link    outage // of the connection
	failure outage // of the reader
	noted   string // the latest note on a failure
}

// items are those of the reader, each error as the last one. Why it ends without one is ctx.
func (w *watch) items(ctx context.Context) iter.Seq2[appwatch.Item, error] {
	return appwatch.Watch(ctx, w.js, w.Reader)
}

// consumerName is that of a consumer of package appwatch.
var consumerName = regexp.MustCompile(`appwatch-[0-9A-Za-z]+`)

// retrying takes what the reader retries.
func (w *watch) retrying(err error) {
	reason := ""
	if err != nil {
		// A consumer has another name each time, and is the same failure.
		reason = consumerName.ReplaceAllString(strings.ReplaceAll(err.Error(), "\n", "; "), "appwatch")
	}
	w.failure.set(reason, w.Now())
	if w.Terminal == nil && reason != w.noted {
		if w.noted = reason; reason == "" {
			w.note("reads again")
		} else {
			w.note("not readable, trying again: %s", reason)
		}
	}
}

// note prints a line for people beside the output.
func (w *watch) note(format string, args ...any) {
	_, _ = fmt.Fprintf(w.Notes, "appbridge: %s\n", appview.Safe(fmt.Sprintf(format, args...)))
}

// why is what hinders the reader, to follow a text.
func (w *watch) why() string {
	if reason, _ := w.failure.get(); reason != "" {
		return ": " + reason
	}
	if w.owed {
		return ": a loss of events has not been repaired"
	}
	return w.state
}

// names are the subjects that are read.
func (w *watch) names() (subjects.Subjects, error) {
	return subjects.New(cmp.Or(w.Reader.Prefix, subjects.DefaultPrefix))
}

// app is the id of the only app that is watched.
func (w *watch) app() (subjects.AppID, bool) {
	id := subjects.AppID{Project: w.Reader.Project, Domain: w.Reader.Domain, Name: w.Reader.App}
	return id, id.Validate() == nil
}

// filter names the apps that are watched, empty for all.
func (w *watch) filter() string {
	var words []string
	for _, part := range []struct{ name, value string }{{"project", w.Reader.Project}, {"domain", w.Reader.Domain}, {"app", w.Reader.App}} {
		if part.value != "" {
			words = append(words, part.name+" "+part.value)
		}
	}
	if len(w.Reader.Statuses) > 0 {
		words = append(words, strings.Join(w.Reader.Statuses, " or "))
	}
	return strings.Join(words, ", ")
}

// style is that of lines.
func (w *watch) style() appview.Style {
	return appview.Style{Wide: w.Form == Wide, Color: w.Color, Now: w.Now()}
}
