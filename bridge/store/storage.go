package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// JetStreamTimeout bounds one request to JetStream.
const JetStreamTimeout = 10 * time.Second

// Config names the stream and the bucket, and describes those that are created.
type Config struct {
	Stream, Bucket, Prefix  string
	ClusterName, ClusterUID string

	Replicas int
	MaxAge   time.Duration // of events, 0 for any age
	MaxBytes int64         // of the stream, 0 without a limit

	AllowUnsafeStream bool // logs what can lose acknowledged events instead of rejecting it
	AcceptReset       bool // also a cluster that was rebuilt under its old name
}

// Storage reads, creates and marks the stream and the bucket.
type Storage struct {
	JS       jetstream.JetStream
	Log      *zap.Logger
	Subjects subjects.Subjects
	Config   Config

	// ID is the identity of the stream, once identify has found it.
	ID string
	// The newest state that was read; nil if the stream or the bucket does not exist.
	Stream, Bucket *jetstream.StreamInfo
	// Of their configurations: the settings that the client library does not know.
	unknownStream, unknownBucket []string
	// When the bucket was created that holds entries of this cluster, whatever its metadata are later.
	// An edit of a bucket with the stock client drops them.
	ownBucket time.Time

	losses losses // as ReadLosses found them
}

// New returns a Storage that has read nothing yet.
func New(js jetstream.JetStream, s subjects.Subjects, cfg Config, log *zap.Logger) *Storage {
	return &Storage{JS: js, Log: log, Subjects: s, Config: cfg}
}

// Info is LookUp of a stream that may be missing; nil means that there is none.
func (s *Storage) Info(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	info, _, err := s.read(ctx, name)
	return info, err
}

// read is Info, with the settings that the client library does not know.
func (s *Storage) read(ctx context.Context, name string) (*jetstream.StreamInfo, []string, error) {
	info, unknown, err := readInfo(ctx, s.JS, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, nil
	}
	return info, unknown, err
}

// existing is Info of a stream that has to exist.
func (s *Storage) existing(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	info, err := s.Info(ctx, name)
	if err == nil && info == nil {
		err = fmt.Errorf("stream %s is gone", name)
	}
	return info, err
}

// LookUp reads the configuration and state of stream and bucket.
func (s *Storage) LookUp(ctx context.Context) (err error) {
	if s.Stream, s.unknownStream, err = s.read(ctx, s.Config.Stream); err != nil {
		return err
	}
	if s.Bucket, s.unknownBucket, err = s.read(ctx, subjects.BucketStream(s.Config.Bucket)); err != nil || s.Bucket == nil {
		return err
	}
	own := metadataOf(s.Bucket, subjects.MetadataClusterUID) != ""
	if !own && s.Bucket.State.Msgs > 0 && !s.ownBucket.Equal(s.Bucket.Created) {
		if own, err = s.holdsOurs(ctx); err != nil {
			return err
		}
	}
	if own {
		s.ownBucket = s.Bucket.Created
	}
	return nil
}

// holdsOurs reports whether the newest message of the bucket is an entry of a bridge of this cluster.
func (s *Storage) holdsOurs(ctx context.Context) (bool, error) {
	m, err := OrNone(LastMessage(ctx, s.JS, subjects.BucketStream(s.Config.Bucket), subjects.BucketFilter(s.Config.Bucket)))
	if m == nil {
		return false, err
	}
	_, unreadable := app.ReadEntry(m.Header, m.Data)
	return unreadable == nil && m.Header.Get(subjects.CESource) == subjects.Source(s.Config.ClusterName), nil
}

// ReadStream reads the stream, which has to exist, again.
func (s *Storage) ReadStream(ctx context.Context) (err error) {
	s.Stream, err = s.existing(ctx, s.Config.Stream)
	return err
}

// Holder returns the stream that holds the subjects of the events, "" if there is none.
func (s *Storage) Holder(ctx context.Context) (string, error) {
	name, err := s.JS.StreamNameBySubject(ctx, s.Subjects.Events())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "", nil
	case err != nil:
		return "", Unavailable("look up the stream of "+s.Subjects.Events(), err)
	case name == s.Config.Stream:
		return "", fmt.Errorf("stream %s was made a moment ago", name) // by another bridge
	}
	return name, nil
}

// Inspect checks the configuration of stream and bucket and changes nothing. It returns a
// *ConfigError if an operator has to change something.
func (s *Storage) Inspect(ctx context.Context) error {
	if err := s.LookUp(ctx); err != nil {
		return err
	}
	if s.Stream != nil {
		if err := s.InspectStream(); err != nil {
			return err
		}
	} else if other, err := s.Holder(ctx); err != nil {
		return err
	} else if other != "" {
		return &app.ConfigError{
			Field: "prefix", Value: s.Config.Prefix,
			Problem: fmt.Sprintf("stream %s already holds %s", other, s.Subjects.Events()),
			Repair:  "choose another --prefix, or --stream " + other,
		}
	}
	if s.Bucket != nil {
		return s.InspectBucket()
	}
	return nil
}

// InspectStream checks the configuration of the stream that was read.
func (s *Storage) InspectStream() error {
	if err := cmp.Or(s.checkStream(), checkFirst("stream", s.Config.Stream, s.Stream)); err != nil {
		return err
	}
	return s.CheckCluster("stream", s.Config.Stream, s.Stream.Config)
}

// InspectBucket checks the configuration of the bucket that was read.
func (s *Storage) InspectBucket() error {
	if err := cmp.Or(s.checkBucket(), checkFirst("bucket", s.Config.Bucket, s.Bucket)); err != nil {
		return err
	}
	cfg := s.Bucket.Config
	var unfit problems
	unfit.add(cfg.Metadata[subjects.MetadataClusterUID] == "" && s.Bucket.State.Msgs > 0 && !s.ownBucket.Equal(s.Bucket.Created),
		"it holds %d entries that appbridge did not write", s.Bucket.State.Msgs)
	of := cfg.Metadata[subjects.MetadataStream]
	unfit.add(of != "" && of != s.Config.Stream, "it is the snapshot of stream %s, not of %s", of, s.Config.Stream)
	if err := unfit.refuse("bucket", s.Config.Bucket, "choose another --bucket or change this one"); err != nil {
		return err
	}
	return s.CheckCluster("bucket", s.Config.Bucket, cfg)
}

// Identify determines the identity of the stream. position is the highest sequence that an entry of
// the bucket reflects. A stream or bucket without an identity, from an older version or from a
// backup, counts as the same if it is of this cluster.
func (s *Storage) Identify(known Checkpoint, position uint64) error {
	id, bucketID := metadataOf(s.Stream, subjects.MetadataStreamID), metadataOf(s.Bucket, subjects.MetadataStreamID)
	switch {
	case id != "" && position > 0 && bucketID != "" && bucketID != id:
		return s.otherHistory("it reflects sequence %d of a stream with id %s, stream %s has id %s",
			position, bucketID, s.Config.Stream, id)
	case id != "":
	case !s.madeByHand():
		id = cmp.Or(bucketID, s.knownID(known))
	case position > 0:
		id = bucketID
	}
	s.ID = cmp.Or(id, rand.Text())
	return nil
}

// CheckIdentity compares the identities of a stream and of its bucket, each of which may have none. Readers
// of both go on only where they belong together.
func (s *Storage) CheckIdentity(stream, bucket *jetstream.StreamInfo) error {
	id, bucketID := metadataOf(stream, subjects.MetadataStreamID), metadataOf(bucket, subjects.MetadataStreamID)
	if id == "" || bucketID == "" || id == bucketID || bucket.State.Msgs == 0 {
		return nil
	}
	return s.otherHistory("its %s is %s, that of stream %s is %s", subjects.MetadataStreamID, bucketID, s.Config.Stream, id)
}

// knownID is the stream identity of the acknowledged sequences, if the names are the same.
func (s *Storage) knownID(known Checkpoint) string {
	here := s.Checkpoint()
	here.StreamID = known.StreamID
	if !known.SameHistory(here) {
		return ""
	}
	return known.StreamID
}

// metadataOf is a value of a stream's metadata, "" if there is no stream.
func metadataOf(info *jetstream.StreamInfo, key string) string {
	if info == nil {
		return ""
	}
	return info.Config.Metadata[key]
}

// madeByHand reports whether an operator made the stream and no bridge has marked it yet.
func (s *Storage) madeByHand() bool {
	return s.Stream != nil && metadataOf(s.Stream, subjects.MetadataStreamID) == "" &&
		metadataOf(s.Stream, subjects.MetadataClusterUID) == ""
}

// otherHistory is the error of a bucket that does not reflect this stream.
func (s *Storage) otherHistory(format string, args ...any) error {
	return &app.ConfigError{
		Field: "bucket", Value: s.Config.Bucket,
		Problem: fmt.Sprintf(format, args...) + ": they do not belong together",
		Repair:  fmt.Sprintf("restore the stream, or delete the bucket (nats kv del %s) to have it written again", s.Config.Bucket),
	}
}

// CheckPosition checks that the stream has the bucket's event at its position, or had it.
func (s *Storage) CheckPosition(ctx context.Context, snap *Snapshot) error {
	if s.Stream == nil || snap.Position == 0 {
		return nil // a stream that is created again continues behind the bucket
	}
	msg, err := OrNone(MessageAt(ctx, s.JS, s.Config.Stream, snap.Position))
	switch {
	case err != nil:
		return fmt.Errorf("read sequence %d of stream %s: %w", snap.Position, s.Config.Stream, err)
	case msg == nil:
		return nil // retention removed it, or it is in a lost range
	}
	if id := msg.Header.Get(subjects.CEID); id != snap.positionID {
		return s.otherHistory("it reflects event %s at sequence %d, where stream %s holds %q",
			snap.positionID, snap.Position, s.Config.Stream, id)
	}
	return nil
}

// CheckCluster compares the cluster that a stream was made for with this one. A stream that names
// none was made by an operator.
func (s *Storage) CheckCluster(field, value string, cfg jetstream.StreamConfig) error {
	uid, name := cfg.Metadata[subjects.MetadataClusterUID], cfg.Metadata[subjects.MetadataClusterName]
	if uid == "" || uid == s.Config.ClusterUID || (s.Config.AcceptReset && name == s.Config.ClusterName) {
		return nil
	}
	repair := "give each cluster a stream, bucket and prefix of its own; if this cluster was rebuilt under its old name, start once with --accept-reset"
	if s.Config.AcceptReset {
		repair = fmt.Sprintf("--accept-reset is for a cluster that was rebuilt under its old name; for that, start with --cluster-name %s", name)
	}
	return &app.ConfigError{
		Field: field, Value: value, Repair: repair,
		Problem: fmt.Sprintf("it belongs to cluster %q (uid %s), this is %q (uid %s)", name, uid, s.Config.ClusterName, s.Config.ClusterUID),
	}
}

// OtherName is the name that a stream has for this cluster, empty if it is the configured one or
// none. A name is no identity: --cluster-name may change, and ce-source changes with it.
func (s *Storage) OtherName(cfg jetstream.StreamConfig) string {
	name := cfg.Metadata[subjects.MetadataClusterName]
	if cfg.Metadata[subjects.MetadataClusterUID] != s.Config.ClusterUID || name == s.Config.ClusterName {
		return ""
	}
	return name
}

// Checkpoint is what the acknowledged sequences of this stream and bucket belong to.
func (s *Storage) Checkpoint() Checkpoint {
	return Checkpoint{StreamID: s.ID, ClusterUID: s.Config.ClusterUID, StreamName: s.Config.Stream, BucketName: s.Config.Bucket}
}

// AcceptReset marks stream and bucket: all events so far are of a past history of the cluster.
func (s *Storage) AcceptReset(ctx context.Context) (err error) {
	if err = s.ReadStream(ctx); err != nil {
		return err
	}
	reset := map[string]string{subjects.MetadataResetSequence: strconv.FormatUint(s.Stream.State.LastSeq, 10)}
	// Both: either may be created again from the other.
	if s.Bucket, err = s.Mark(ctx, "bucket", s.Bucket, reset); err != nil {
		return err
	}
	if s.Stream, err = s.Mark(ctx, "stream", s.Stream, reset); err != nil {
		return err
	}
	s.Log.Warn("accepted that the cluster's history was reset", zap.Uint64("publishedUpTo", s.Accepted()))
	return nil
}

// Accepted is the highest sequence of a history that is over, 0 if none is.
func (s *Storage) Accepted() uint64 {
	var newest uint64
	for _, info := range []*jetstream.StreamInfo{s.Stream, s.Bucket} {
		sequence, err := strconv.ParseUint(metadataOf(info, subjects.MetadataResetSequence), 10, 64)
		if err == nil {
			newest = max(newest, sequence)
		}
	}
	return newest
}
