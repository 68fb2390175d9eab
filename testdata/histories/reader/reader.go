// Package reader is the reference reader of histories: package appwatch, printed as lines.
package reader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/histories/lines"
)

// Options are what a reader is started with.
type Options struct {
	URL, Prefix, Stream, Bucket string
	BucketStream                string // empty: that of the bucket
	From                        string // the position of the last line; empty: a snapshot first
	Project, Domain, App        string // empty: any
	Kinds                       []subjects.EventKind
	Statuses                    []string
	Latest, HeadersOnly         bool
	NoSnapshot                  bool      // never read the bucket
	Since                       time.Time // without From, begin with what was stored then or later
	// Log, if set, is called with what went wrong and is tried again.
	Log func(error)
}

// Args are the options as arguments of a process.
func (o Options) Args() []string {
	args := []string{"--nats-url", o.URL, "--prefix", o.Prefix, "--stream", o.Stream, "--bucket", o.Bucket}
	for name, value := range map[string]string{"--bucket-stream": o.BucketStream, "--from": o.From} {
		if value != "" {
			args = append(args, name, value)
		}
	}
	if !o.Since.IsZero() {
		args = append(args, "--since", o.Since.UTC().Format(time.RFC3339Nano))
	}
	for name, set := range map[string]bool{"--latest": o.Latest, "--headers-only": o.HeadersOnly, "--no-snapshot": o.NoSnapshot} {
		if set {
			args = append(args, name)
		}
	}
	for _, kind := range o.Kinds {
		args = append(args, "--kind", string(kind))
	}
	for _, status := range o.Statuses {
		args = append(args, "--status", status)
	}
	if o.Project != "" {
		args = append(args, strings.TrimRight(strings.Join([]string{o.Project, o.Domain, o.App}, "/"), "/"))
	}
	return args
}

// Run reads until ctx ends, and writes a line for each thing that it receives.
func Run(ctx context.Context, o Options, out io.Writer) error {
	conn, err := nats.Connect(o.URL, nats.Name("histories reader"), nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(10*time.Millisecond, 10*time.Millisecond),
		nats.ReconnectBufSize(-1), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		return fmt.Errorf("connect to %s: %w", o.URL, err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	position, err := appwatch.ParsePosition(o.From)
	if o.From != "" && err != nil {
		return err
	}
	for item, err := range appwatch.Watch(ctx, js, appwatch.Options{
		Prefix: o.Prefix, Stream: o.Stream, Bucket: o.Bucket, BucketStream: o.BucketStream, From: position,
		Project: o.Project, Domain: o.Domain, App: o.App, Kinds: o.Kinds, Statuses: o.Statuses,
		Latest: o.Latest, HeadersOnly: o.HeadersOnly, NoSnapshot: o.NoSnapshot, Since: o.Since, OnRetry: o.Log,
	}) {
		if err != nil {
			return err
		}
		l, err := line(item, o.HeadersOnly)
		if err == nil {
			err = lines.Write(out, l)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

var types = map[appwatch.Type]lines.Type{
	appwatch.State: lines.State, appwatch.Mark: lines.Mark, appwatch.Event: lines.Event,
	appwatch.Loss: lines.Loss, appwatch.Restart: lines.Restart,
}

func line(item appwatch.Item, headersOnly bool) (l lines.Line, err error) {
	l = lines.Line{Type: types[item.Type], Position: item.Position.String(), Sequence: item.Position.Sequence}
	switch item.Type {
	case appwatch.Loss, appwatch.Restart:
		l.Reason, l.From, l.To = reason(item.Reason), item.Lost.From, item.Lost.To
		return l, nil
	case appwatch.Mark:
		l.Owed = item.Position.Owed
		return l, nil
	}
	h := item.Header()
	l.Project, l.Domain, l.App = item.ID.Project, item.ID.Domain, item.ID.Name
	l.Kind, l.Sequence, l.ID = item.Kind, item.Sequence, item.MessageID()
	l.UID, l.ResourceVersion, l.Time = h.Get(subjects.HeaderUID), h.Get(subjects.HeaderResourceVersion), h.Get(subjects.CETime)
	l.Status, l.PreviousStatus, l.PreviousSequence = item.Status(), item.PreviousStatus(), item.PreviousSequence()
	l.Merged, l.Synthesized, l.FinalStateUnknown = item.Merged(), item.Synthesized(), item.FinalStateUnknown()
	l.Skipped, l.Changed = item.Skipped, item.Changed
	if fields := h.Get(subjects.HeaderTruncated); fields != "" {
		l.Truncated = strings.Split(fields, ",")
	}
	if headersOnly {
		return l, nil
	}
	app, err := item.State()
	if err != nil {
		return l, err
	}
	old, err := item.Old()
	if err != nil {
		return l, err
	}
	if l.Object, err = encode(app); err == nil && item.Kind == subjects.Updated && item.Type == appwatch.Event {
		l.Old, err = encode(old)
	}
	return l, err
}

func encode(app *appv1.App) ([]byte, error) {
	if app == nil {
		return nil, nil
	}
	return protojson.Marshal(app)
}

func reason(err error) string {
	for word, of := range map[string]error{
		lines.Notice: appwatch.ErrNotice, lines.Removed: appwatch.ErrRemoved,
		lines.RolledBack: appwatch.ErrRolledBack, lines.OtherStream: appwatch.ErrOtherStream,
	} {
		if errors.Is(err, of) {
			return word
		}
	}
	return fmt.Sprint(err)
}
