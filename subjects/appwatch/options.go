package appwatch

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects"
)

// Options select what is watched, and from where. The zero value is every app of the default stream
// and bucket, from now on.
type Options struct {
	Prefix string // of the events' subjects; empty: subjects.DefaultPrefix
	Stream string // of the events; empty: subjects.DefaultStream. Also a mirror, or one with sources
	Bucket string // empty: subjects.DefaultBucket
	// BucketStream is the stream that holds the bucket's entries; empty: the bucket's own. It is for
	// a mirror of that stream under another name.
	BucketStream string

	// Project, Domain and App select apps by the parts of their id, not escaped; empty: all. The
	// server filters.
	Project, Domain, App string
	// Kinds selects events, and no states; empty: all. The reader filters.
	Kinds []subjects.EventKind
	// Statuses selects by the word in [subjects.HeaderAppStatus]: states with one of these words, and
	// events with one of them before or after, so that a reader sees an app come and go; empty: all.
	// The reader filters.
	Statuses []string

	// From resumes behind a position: without a snapshot, with the events behind it. The Mark follows
	// the events that the stream held at the start.
	From Position
	// Since begins with the first event that the server stored then or later: without a snapshot, and
	// with a Mark as with From. Behind that event, and behind the Mark, every event follows. The times
	// that servers stored may step back by less than ten minutes. The messages of the ten minutes
	// before are read as well. It is ignored with From.
	Since time.Time
	// NoSnapshot never reads the bucket. Without From and Since the next event is the first. Where
	// events are gone, a Loss names them, and those that are left follow: no Restart. See Losses in
	// the package's documentation for what such a reader does not see.
	NoSnapshot bool
	// Latest yields only the newest event of each app where events wait for a slow loop, and counts
	// the others in Item.Skipped. What waits is at most one event and one state for each app.
	Latest bool
	// HeadersOnly reads no bodies: Item.State and Item.Old return ErrNoBody.
	HeadersOnly bool

	// OnRetry is called with the reason when something is retried, and with nil when reading goes on.
	// Calls do not overlap. It must not block. With Latest another goroutine than that of the loop
	// calls it.
	OnRetry func(error)
}

// prepared are Options with their defaults, checked.
type prepared struct {
	Options
	names   subjects.Subjects
	tokens  string   // of the apps in a filter, "*.*.*" for all
	filters []string // of the event stream
	branch  string   // begins the subjects of all events, "<prefix>.events."
	notice  string   // the subject of a notice of loss
	filler  string   // that of a filler
}

// validate checks the options and adds the defaults. The error names every bad field.
func (o Options) validate() (*prepared, error) {
	o.Prefix = cmp.Or(o.Prefix, subjects.DefaultPrefix)
	o.Stream = cmp.Or(o.Stream, subjects.DefaultStream)
	o.Bucket = cmp.Or(o.Bucket, subjects.DefaultBucket)
	p := &prepared{Options: o}
	var errs []error
	var err error
	p.names, err = subjects.New(o.Prefix)
	errs = append(errs, err, subjects.ValidateStream(o.Stream), subjects.ValidateBucket(o.Bucket))
	if o.BucketStream != "" {
		errs = append(errs, subjects.ValidateStream(o.BucketStream))
	} else {
		p.BucketStream = subjects.BucketStream(o.Bucket)
	}
	tokens := make([]string, 0, 3)
	for _, part := range []string{o.Project, o.Domain, o.App} {
		token := "*"
		if part != "" {
			token, err = subjects.EscapeToken(part)
			errs = append(errs, err)
		}
		tokens = append(tokens, token)
	}
	p.tokens = strings.Join(tokens, ".")
	if len(p.tokens) > subjects.MaxKeyBytes {
		errs = append(errs, fmt.Errorf("app %s/%s/%s: %w", o.Project, o.Domain, o.App, subjects.ErrTooLong))
	}
	for _, kind := range o.Kinds {
		if !slices.Contains([]subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted}, kind) {
			errs = append(errs, fmt.Errorf("kind %q: %w", kind, subjects.ErrInvalidName))
		}
	}
	if slices.Contains(o.Statuses, "") {
		errs = append(errs, fmt.Errorf("status: %w", subjects.ErrEmptyPart))
	}
	if !isStreamID(o.From.StreamID) {
		errs = append(errs, fmt.Errorf("position %q: %w", o.From.String(), subjects.ErrMalformed))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	p.branch, p.notice, p.filler = strings.TrimSuffix(p.names.Events(), ">"), p.names.Notice(), p.names.Lost()
	if p.all() {
		p.filters = []string{p.names.Events()}
	} else {
		// Without a filter of its own, a notice of loss does not reach a reader of some apps.
		p.filters = []string{p.branch + p.tokens + ".*", p.notice}
	}
	return p, nil
}

// all reports whether every app is selected.
func (p *prepared) all() bool { return p.Project == "" && p.Domain == "" && p.App == "" }

// wants reports whether Kinds and Statuses select an item.
func (p *prepared) wants(it *Item) bool {
	if it.Type == Event && len(p.Kinds) > 0 && !slices.Contains(p.Kinds, it.Kind) {
		return false
	}
	if len(p.Statuses) == 0 || it.Type != Event && it.Type != State {
		return true
	}
	return slices.Contains(p.Statuses, it.Status()) ||
		(it.Type == Event || it.Changed) && slices.Contains(p.Statuses, it.PreviousStatus())
}
