package bridge

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

// jetStreamTimeout bounds one request to JetStream.
const jetStreamTimeout = 10 * time.Second

// storageConfig names the stream and the bucket, and describes those that are created.
type storageConfig struct {
	Stream, Bucket, Prefix  string
	ClusterName, ClusterUID string

	Replicas int
	MaxAge   time.Duration // of events, 0 for any age
	MaxBytes int64         // of the stream, 0 without a limit

	AllowUnsafeStream bool // logs what can lose acknowledged events instead of rejecting it
	AcceptReset       bool // also a cluster that was rebuilt under its old name
}

// storage reads, creates and marks the stream and the bucket.
type storage struct {
	js       jetstream.JetStream
	log      *zap.Logger
	subjects subjects.Subjects
	cfg      storageConfig

	// id is the identity of the stream, once identify has found it.
	id string
	// The newest state that was read; nil if the stream or the bucket does not exist.
	stream, bucket *jetstream.StreamInfo
}

func newStorage(js jetstream.JetStream, s subjects.Subjects, cfg storageConfig, log *zap.Logger) *storage {
	return &storage{js: js, log: log, subjects: s, cfg: cfg}
}

// info looks a stream up; nil means that there is none.
func (s *storage) info(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	stream, err := s.js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, nil
	case err != nil:
		return nil, unavailable("look up stream "+name, err)
	}
	return stream.CachedInfo(), nil
}

// lookUp reads the configuration and state of stream and bucket.
func (s *storage) lookUp(ctx context.Context) (err error) {
	if s.stream, err = s.info(ctx, s.cfg.Stream); err != nil {
		return err
	}
	s.bucket, err = s.info(ctx, subjects.BucketStream(s.cfg.Bucket))
	return err
}

// holder returns the stream that holds the subjects of the events, "" if there is none.
func (s *storage) holder(ctx context.Context) (string, error) {
	name, err := s.js.StreamNameBySubject(ctx, s.subjects.Events())
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "", nil
	case err != nil:
		return "", unavailable("look up the stream of "+s.subjects.Events(), err)
	}
	return name, nil
}

// inspect checks the configuration of stream and bucket and changes nothing. It returns a *ConfigError
// if an operator has to change something.
func (s *storage) inspect(ctx context.Context) error {
	if err := s.lookUp(ctx); err != nil {
		return err
	}
	if s.stream == nil {
		other, err := s.holder(ctx)
		if err != nil {
			return err
		}
		if other != "" {
			return &app.ConfigError{
				Field: "prefix", Value: s.cfg.Prefix,
				Problem: fmt.Sprintf("stream %s already holds %s", other, s.subjects.Events()),
				Repair:  "choose another --prefix, or --stream " + other,
			}
		}
	} else if err := s.inspectStream(); err != nil {
		return err
	}
	if s.bucket != nil {
		return s.inspectBucket()
	}
	return nil
}

func (s *storage) inspectStream() error {
	cfg := s.stream.Config
	if got, want := cfg.Subjects, []string{s.subjects.Events()}; !slices.Equal(got, want) {
		return &app.ConfigError{
			Field: "stream", Value: s.cfg.Stream,
			Problem: fmt.Sprintf("it holds the subjects %s, want %s", strings.Join(got, ", "), want[0]),
			Repair:  "choose another --stream, or the --prefix that belongs to it",
		}
	}
	if err := s.checkDurability(cfg); err != nil {
		return err
	}
	return s.checkCluster("stream", s.cfg.Stream, cfg)
}

func (s *storage) inspectBucket() error {
	cfg := s.bucket.Config
	problems := bucketProblems(cfg)
	if cfg.Metadata[subjects.MetadataClusterUID] == "" && s.bucket.State.Msgs > 0 {
		problems = append(problems, fmt.Sprintf("it holds %d entries that appbridge did not write", s.bucket.State.Msgs))
	}
	if of := cfg.Metadata[subjects.MetadataStream]; of != "" && of != s.cfg.Stream {
		problems = append(problems, fmt.Sprintf("it is the snapshot of stream %s, not of %s", of, s.cfg.Stream))
	}
	if len(problems) > 0 {
		return &app.ConfigError{
			Field: "bucket", Value: s.cfg.Bucket, Problem: strings.Join(problems, "; "),
			Repair: "choose another --bucket or change this one",
		}
	}
	return s.checkCluster("bucket", s.cfg.Bucket, cfg)
}

// identify determines the identity of the stream. position is the highest sequence that an entry of
// the bucket reflects. A stream or bucket without an identity, from an older version or from a backup,
// counts as the same if it is of this cluster.
func (s *storage) identify(known witness, position uint64) error {
	bucketID := ""
	if s.bucket != nil {
		bucketID = s.bucket.Config.Metadata[subjects.MetadataStreamID]
	}
	if s.stream == nil {
		s.id = cmp.Or(bucketID, s.knownID(known), rand.Text())
		return nil
	}
	streamID := s.stream.Config.Metadata[subjects.MetadataStreamID]
	switch {
	case streamID != "" && position > 0 && bucketID != "" && bucketID != streamID:
		return s.otherHistory(fmt.Sprintf("it reflects sequence %d of a stream with id %s, stream %s has id %s: they do not belong together",
			position, bucketID, s.cfg.Stream, streamID))
	case streamID != "":
		s.id = streamID
	case !s.madeByHand():
		s.id = cmp.Or(bucketID, s.knownID(known), rand.Text())
	case position > 0:
		s.id = cmp.Or(bucketID, rand.Text())
	default:
		s.id = rand.Text()
	}
	return nil
}

// knownID is the stream identity of the acknowledged sequences, if they are of a stream and a bucket
// of these names.
func (s *storage) knownID(known witness) string {
	if known.StreamName != s.cfg.Stream || known.BucketName != s.cfg.Bucket || known.ClusterUID != s.cfg.ClusterUID {
		return ""
	}
	return known.StreamID
}

// madeByHand reports whether an operator made the stream and no bridge has marked it yet.
func (s *storage) madeByHand() bool {
	m := s.stream.Config.Metadata
	return m[subjects.MetadataStreamID] == "" && m[subjects.MetadataClusterUID] == ""
}

// otherHistory is the error of a bucket that does not reflect this stream.
func (s *storage) otherHistory(problem string) error {
	return &app.ConfigError{
		Field: "bucket", Value: s.cfg.Bucket, Problem: problem,
		Repair: fmt.Sprintf("restore the stream, or delete the bucket (nats kv del %s) to have it written again", s.cfg.Bucket),
	}
}

// checkPosition checks that the bucket reflects this stream: that the stream has the event at the
// bucket's position, unless it was removed.
func (s *storage) checkPosition(ctx context.Context, snap *snapshot) error {
	if s.stream == nil || snap.position == 0 {
		return nil // a stream that is created again continues behind the bucket
	}
	msg, err := messageAt(ctx, s.js.Conn(), s.cfg.Stream, snap.position)
	switch {
	case errors.Is(err, errNoMessage):
		return nil // retention took it, or it is in a lost range
	case err != nil:
		return fmt.Errorf("read sequence %d of stream %s: %w", snap.position, s.cfg.Stream, err)
	}
	if id := msg.header.Get(subjects.CEID); id != snap.positionID {
		return s.otherHistory(fmt.Sprintf("it reflects event %s at sequence %d, where stream %s holds %q: they do not belong together",
			snap.positionID, snap.position, s.cfg.Stream, id))
	}
	return nil
}

// checkCluster compares the cluster that a stream was made for with this one. A stream that names none
// was made by an operator.
func (s *storage) checkCluster(field, value string, cfg jetstream.StreamConfig) error {
	uid, name := cfg.Metadata[subjects.MetadataClusterUID], cfg.Metadata[subjects.MetadataClusterName]
	if uid == "" || uid == s.cfg.ClusterUID || (s.cfg.AcceptReset && name == s.cfg.ClusterName) {
		return nil
	}
	repair := "give each cluster a stream, bucket and prefix of its own; if this cluster was rebuilt under its old name, start once with --accept-reset"
	if s.cfg.AcceptReset {
		repair = fmt.Sprintf("--accept-reset is for a cluster that was rebuilt under its old name; for that, start with --cluster-name %s", name)
	}
	return &app.ConfigError{
		Field: field, Value: value, Repair: repair,
		Problem: fmt.Sprintf("it belongs to cluster %q (uid %s), this is %q (uid %s)", name, uid, s.cfg.ClusterName, s.cfg.ClusterUID),
	}
}

// otherName is the name that a stream has for this cluster, empty if it is the configured one or none.
// A name is no identity: --cluster-name may change, and ce-source changes with it.
func (s *storage) otherName(cfg jetstream.StreamConfig) string {
	name := cfg.Metadata[subjects.MetadataClusterName]
	if cfg.Metadata[subjects.MetadataClusterUID] != s.cfg.ClusterUID || name == s.cfg.ClusterName {
		return ""
	}
	return name
}

// witness is what the acknowledged sequences of this stream and bucket belong to.
func (s *storage) witness() witness {
	return witness{StreamID: s.id, ClusterUID: s.cfg.ClusterUID, StreamName: s.cfg.Stream, BucketName: s.cfg.Bucket}
}

// acceptReset marks stream and bucket: all events so far belong to a history of the cluster that is
// over.
func (s *storage) acceptReset(ctx context.Context) (err error) {
	if s.stream, err = s.info(ctx, s.cfg.Stream); err != nil || s.stream == nil {
		return errors.Join(fmt.Errorf("stream %s is gone", s.cfg.Stream), err)
	}
	reset := map[string]string{subjects.MetadataResetSequence: strconv.FormatUint(s.stream.State.LastSeq, 10)}
	// Both: either may be created again from the other.
	if s.bucket, err = s.mark(ctx, "bucket", s.bucket, reset); err != nil {
		return err
	}
	if s.stream, err = s.mark(ctx, "stream", s.stream, reset); err != nil {
		return err
	}
	s.log.Warn("accepted that the cluster's history was reset", zap.Uint64("publishedUpTo", s.accepted()))
	return nil
}

// accepted is the highest sequence of a history that is over, 0 if none is.
func (s *storage) accepted() uint64 {
	var newest uint64
	for _, info := range []*jetstream.StreamInfo{s.stream, s.bucket} {
		if info == nil {
			continue
		}
		sequence, err := strconv.ParseUint(info.Config.Metadata[subjects.MetadataResetSequence], 10, 64)
		if err == nil {
			newest = max(newest, sequence)
		}
	}
	return newest
}
