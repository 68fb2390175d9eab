package store

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

type problems []string

func (p *problems) add(unfit bool, format string, args ...any) {
	if unfit {
		*p = append(*p, fmt.Sprintf(format, args...))
	}
}

// refuse returns the problems of a stream or bucket as an error, nil if there are none.
func (p problems) refuse(field, name, repair string) error {
	if len(p) == 0 {
		return nil
	}
	return &app.ConfigError{Field: field, Value: name, Problem: strings.Join(p, "; "), Repair: repair}
}

// checkStream refuses settings of the stream that change, drop or reject events.
func (s *Storage) checkStream() error {
	return s.refuse("stream", s.Config.Stream, s.streamFindings(), "choose another --stream or change this one",
		"change the stream, or accept the loss with --allow-unsafe-stream")
}

// checkBucket refuses settings of the bucket that change, drop or reject entries.
func (s *Storage) checkBucket() error {
	return s.refuse("bucket", s.Config.Bucket, s.bucketFindings(), "choose another --bucket or change this one",
		"change the bucket, or accept the loss with --allow-unsafe-stream")
}

func (s *Storage) streamFindings() []finding {
	return s.configured(s.Stream.Config, s.Subjects.Events()).check(ofStream)
}

func (s *Storage) bucketFindings() []finding {
	return s.configured(s.Bucket.Config, subjects.BucketFilter(s.Config.Bucket)).check(ofBucket)
}

// refuse returns the refused settings as an error, else the unsafe ones unless they are allowed.
func (s *Storage) refuse(field, name string, found []finding, repair, accept string) error {
	var broken, risky problems
	for _, f := range found {
		switch f.class {
		case refused:
			broken.add(true, "%s", f.text)
			repair = cmp.Or(f.repair, repair)
		case unsafe:
			risky.add(!s.Config.AllowUnsafeStream, "%s", f.text)
		}
	}
	if err := broken.refuse(field, name, repair); err != nil {
		return err
	}
	return risky.refuse(field, name, accept)
}

// logStream logs the settings of the stream that operators should know of.
func (s *Storage) logStream() {
	s.logSettings("stream", s.Config.Stream, s.streamFindings(), s.unknownStream)
}

// logBucket logs the settings of the bucket that operators should know of.
func (s *Storage) logBucket() {
	s.logSettings("bucket", s.Config.Bucket, s.bucketFindings(), s.unknownBucket)
}

func (s *Storage) logSettings(field, name string, found []finding, unknown []string) {
	var risky, notes []string
	for _, f := range found {
		switch f.class {
		case unsafe:
			risky = append(risky, f.text)
		case noted:
			notes = append(notes, f.text)
		}
	}
	if len(risky) > 0 {
		s.Log.Warn("settings that can lose acknowledged messages", zap.String(field, name), zap.Strings("because", risky))
	}
	if len(notes) > 0 {
		s.Log.Info("settings to know of", zap.String(field, name), zap.Strings("settings", notes))
	}
	if len(unknown) > 0 {
		s.Log.Warn("settings that this version of appbridge does not know", zap.String(field, name), zap.Strings("settings", unknown))
	}
}

func ackMeaning(cfg jetstream.StreamConfig) string {
	where := "on disk"
	if cfg.Storage != jetstream.FileStorage {
		where = "in memory"
	}
	if cfg.Replicas > 1 {
		return fmt.Sprintf("stored %s by a majority of %d servers", where, cfg.Replicas)
	}
	return fmt.Sprintf("stored %s by one server, which flushes every sync_interval", where)
}

// Unavailable explains an error if JetStream does not answer.
func Unavailable(what string, err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return fmt.Errorf("%s: JetStream does not answer; is it enabled on the server and for this account? (%w)", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
