package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
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

// checkDurability refuses what loses acknowledged events or breaks the fence.
func (s *Storage) checkDurability(cfg jetstream.StreamConfig) error {
	var broken, unsafe problems
	broken.add(cfg.Sealed, "it is sealed")
	broken.add(cfg.NoAck, "no_ack: publishes are not acknowledged")
	broken.add(cfg.Mirror != nil || len(cfg.Sources) > 0, "it is fed by another stream")
	broken.add(cfg.Retention == jetstream.WorkQueuePolicy, "its retention is a work queue, which one reader empties for all others")
	unsafe.add(cfg.Retention == jetstream.InterestPolicy, "retention %s drops events without a consumer", cfg.Retention)
	unsafe.add(cfg.Storage != jetstream.FileStorage, "memory storage forgets at a restart")
	unsafe.add(cfg.MaxMsgsPerSubject > 0, "max_msgs_per_subject %d drops history", cfg.MaxMsgsPerSubject)
	unsafe.add(cfg.PersistMode == jetstream.AsyncPersistMode, "persist_mode async acknowledges before it writes")
	if err := broken.refuse("stream", s.Config.Stream, "choose another --stream or change this one"); err != nil {
		return err
	}
	if !s.Config.AllowUnsafeStream {
		return unsafe.refuse("stream", s.Config.Stream, "change the stream, or accept the loss with --allow-unsafe-stream")
	}
	if len(unsafe) > 0 {
		s.Log.Warn("the stream can lose acknowledged events", zap.String("stream", s.Config.Stream), zap.Strings("because", unsafe))
	}
	return nil
}

func bucketProblems(cfg jetstream.StreamConfig) (p problems) {
	p.add(cfg.MaxAge != 0, "ttl %s makes entries vanish", cfg.MaxAge)
	p.add(cfg.Retention != jetstream.LimitsPolicy, "retention %s, want limits", cfg.Retention)
	p.add(len(cfg.Sources) > 0 || cfg.Mirror != nil, "it is fed by another stream")
	p.add(cfg.Sealed, "it is sealed")
	p.add(cfg.MaxMsgSize > 0, "a limit of %d bytes for a value would refuse apps", cfg.MaxMsgSize)
	p.add(cfg.MaxMsgs > 0 || cfg.MaxBytes > 0, "a limit (%d entries, %d bytes) would refuse or drop apps", cfg.MaxMsgs, cfg.MaxBytes)
	return p
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
