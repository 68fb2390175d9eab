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

// checkDurability refuses what loses acknowledged events or breaks the fence.
func (s *Storage) checkDurability(cfg jetstream.StreamConfig) error {
	var broken, unsafe []string
	if cfg.Sealed {
		broken = append(broken, "it is sealed")
	}
	if cfg.NoAck {
		broken = append(broken, "no_ack: publishes are not acknowledged")
	}
	if cfg.Mirror != nil || len(cfg.Sources) > 0 {
		broken = append(broken, "it is fed by another stream")
	}
	switch cfg.Retention {
	case jetstream.LimitsPolicy:
	case jetstream.WorkQueuePolicy:
		broken = append(broken, "its retention is a work queue, which one reader empties for all others")
	default:
		unsafe = append(unsafe, fmt.Sprintf("retention %s drops events without a consumer", cfg.Retention))
	}
	if cfg.Storage != jetstream.FileStorage {
		unsafe = append(unsafe, "memory storage forgets at a restart")
	}
	if cfg.MaxMsgsPerSubject > 0 {
		unsafe = append(unsafe, fmt.Sprintf("max_msgs_per_subject %d drops history", cfg.MaxMsgsPerSubject))
	}
	if cfg.PersistMode == jetstream.AsyncPersistMode {
		unsafe = append(unsafe, "persist_mode async acknowledges before it writes")
	}
	if len(broken) > 0 {
		return &app.ConfigError{Field: "stream", Value: s.Config.Stream, Problem: strings.Join(broken, "; "), Repair: "choose another --stream or change this one"}
	}
	if len(unsafe) > 0 {
		if !s.Config.AllowUnsafeStream {
			return &app.ConfigError{
				Field: "stream", Value: s.Config.Stream, Problem: strings.Join(unsafe, "; "),
				Repair: "change the stream, or accept the loss with --allow-unsafe-stream",
			}
		}
		s.Log.Warn("the stream can lose acknowledged events", zap.String("stream", s.Config.Stream), zap.Strings("because", unsafe))
	}
	return nil
}

// BucketProblems lists what makes a bucket unfit.
func BucketProblems(cfg jetstream.StreamConfig) []string {
	var problems []string
	if cfg.MaxAge != 0 {
		problems = append(problems, fmt.Sprintf("ttl %s makes entries vanish", cfg.MaxAge))
	}
	if cfg.Retention != jetstream.LimitsPolicy {
		problems = append(problems, fmt.Sprintf("retention %s, want limits", cfg.Retention))
	}
	if len(cfg.Sources) > 0 || cfg.Mirror != nil {
		problems = append(problems, "it is fed by another stream")
	}
	if cfg.Sealed {
		problems = append(problems, "it is sealed")
	}
	if cfg.MaxMsgSize > 0 {
		problems = append(problems, fmt.Sprintf("a limit of %d bytes for a value would refuse apps", cfg.MaxMsgSize))
	}
	if cfg.MaxMsgs > 0 || cfg.MaxBytes > 0 {
		problems = append(problems, fmt.Sprintf("a limit (%d entries, %d bytes) would refuse or drop apps", cfg.MaxMsgs, cfg.MaxBytes))
	}
	return problems
}

// ackMeaning describes what an acknowledgement of a stream guarantees.
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
