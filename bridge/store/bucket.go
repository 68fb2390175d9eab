package store

import (
	"context"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// Bucket reads and writes a KV bucket through its stream: the client's KV calls have no headers.
type Bucket struct {
	app.Entries
	JS jetstream.JetStream
	// Lost are the ranges that the stream has lost. An entry that reflects one of their sequences
	// counts as damaged: the app's last surviving event is what was published of it.
	Lost []subjects.LostRange
	Log  *zap.Logger
	// Accepted is the newest sequence of a history of the cluster that is over.
	Accepted uint64
	// Known is the state that an app's entry probably shows, which makes reading it cheap; nil: none is.
	Known func(subjects.AppID) app.State
}

// Last reads an app's newest message from the leader of the bucket's stream.
func (b *Bucket) Last(ctx context.Context, id subjects.AppID) (*Message, error) {
	subject, err := b.Subject(id)
	if err != nil {
		return nil, err
	}
	return LastMessage(ctx, b.JS, subjects.BucketStream(b.Name), subject)
}

// Purge removes a key, up to sequence upTo of the bucket's stream; 0: also what was written since.
func (b *Bucket) Purge(ctx context.Context, subject string, upTo uint64) error {
	stream, _, err := LookUp(ctx, b.JS, subjects.BucketStream(b.Name))
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(subject)}
	if upTo > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(upTo+1))
	}
	if err := stream.Purge(ctx, opts...); err != nil {
		return fmt.Errorf("purge %s from bucket %s: %w", Printable(subject), b.Name, err)
	}
	return nil
}

// PurgeApp removes an app's entry without an event: the one at sequence of the bucket's stream,
// nothing if that is 0.
func (b *Bucket) PurgeApp(ctx context.Context, id subjects.AppID, sequence uint64) error {
	if sequence == 0 {
		return nil
	}
	subject, err := b.Subject(id)
	if err != nil {
		return err
	}
	return b.Purge(ctx, subject, sequence)
}

// Printable is a name as it may stand on a terminal: one with control characters is quoted.
func Printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || !utf8.ValidString(name) {
		return quoted
	}
	return name
}
