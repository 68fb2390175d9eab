package retention

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
)

const (
	// interval is how often the consumers are read, and the time limit of one measurement.
	interval = 15 * time.Second
	// maxInterval is how often at least they are read while that fails, for example because a
	// permission is missing.
	maxInterval = 5 * time.Minute
	// maxFilters is how many filters of a consumer are read one by one. With more, every message
	// behind its acknowledgements counts as unread.
	maxFilters = 16
	// maxConsumers bounds the gauge, and the reads of one measurement. Later names have no value.
	maxConsumers = 1000
)

// Config of a Watch.
type Config struct {
	JS     jetstream.JetStream
	Stream string
	Log    *zap.Logger
}

// Watch is the gauge of the durable consumers. Its methods are safe for concurrent use.
type Watch struct {
	left atomic.Pointer[map[string]float64] // by consumer; nil: not measured
	desc *prometheus.Desc
}

// New makes a Watch and registers it.
func New(reg prometheus.Registerer) *Watch {
	w := &Watch{desc: prometheus.NewDesc("appbridge_consumer_retention_left_ratio",
		"Part of the stream's retention that is left for the oldest event that a durable consumer has not acknowledged: 1 if there is none, near 0 before it is removed. Of streams with a limit, of the leader.",
		[]string{"consumer"}, nil)}
	reg.MustRegister(w)
	return w
}

// Describe implements prometheus.Collector.
func (w *Watch) Describe(descs chan<- *prometheus.Desc) { descs <- w.desc }

// Collect implements prometheus.Collector.
func (w *Watch) Collect(metrics chan<- prometheus.Metric) {
	left := w.left.Load()
	if left == nil {
		return
	}
	for consumer, ratio := range *left {
		metrics <- prometheus.MustNewConstMetric(w.desc, prometheus.GaugeValue, ratio, consumer)
	}
}

// Run measures until ctx ends. After a failure there is no value until a measurement succeeds.
func (w *Watch) Run(ctx context.Context, cfg Config) {
	defer w.left.Store(nil)
	report := retry.Log{Logger: cfg.Log}
	for pause := interval; ; {
		switch err := w.update(ctx, cfg); {
		case err == nil:
			pause = interval
		case ctx.Err() == nil && cfg.JS.Conn().IsConnected():
			report.Warn("the durable consumers of the stream cannot be read", err)
			pause = min(2*pause, maxInterval)
		}
		if retry.Wait(ctx, pause) != nil {
			return
		}
	}
}

// update measures once.
func (w *Watch) update(ctx context.Context, cfg Config) error {
	left, err := measure(ctx, cfg)
	if err != nil {
		w.left.Store(nil)
		return err
	}
	w.left.Store(&left)
	return nil
}

// measure returns what is left for each durable consumer.
func measure(ctx context.Context, cfg Config) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	stream, info, err := store.LookUp(ctx, cfg.JS, cfg.Stream)
	if err != nil {
		return nil, err
	}
	left := map[string]float64{}
	if !removes(info.Config) {
		return left, nil
	}
	durable, err := durables(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("list the consumers of stream %s: %w", cfg.Stream, err)
	}
	for _, consumer := range durable {
		oldest, err := unread(ctx, cfg, consumer)
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", consumer.Name, err)
		}
		left[consumer.Name] = ratio(info, oldest, time.Now())
	}
	return left, nil
}

// durables lists the durable consumers of a stream, maxConsumers at most. It reads the list to its
// end: the client's goroutine blocks for ever on a consumer that is not received.
func durables(ctx context.Context, stream jetstream.Stream) ([]*jetstream.ConsumerInfo, error) {
	var durable []*jetstream.ConsumerInfo
	list := stream.ListConsumers(ctx)
	for consumer := range list.Info() {
		if consumer.Config.Durable != "" && len(durable) < maxConsumers {
			durable = append(durable, consumer)
		}
	}
	return durable, list.Err()
}

// unread reads the oldest message that the consumer has not acknowledged, nil if there is none.
func unread(ctx context.Context, cfg Config, consumer *jetstream.ConsumerInfo) (*store.Message, error) {
	if consumer.NumPending == 0 && consumer.NumAckPending == 0 {
		return nil, nil
	}
	filters := consumer.Config.FilterSubjects
	if consumer.Config.FilterSubject != "" {
		filters = []string{consumer.Config.FilterSubject}
	}
	if len(filters) == 0 || len(filters) > maxFilters {
		filters = []string{store.AllMessages}
	}
	var oldest *store.Message
	for _, filter := range filters {
		m, err := store.NextMessage(ctx, cfg.JS, cfg.Stream, filter, consumer.AckFloor.Stream+1)
		if errors.Is(err, store.ErrNoMessage) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if oldest == nil || m.Sequence < oldest.Sequence {
			oldest = m
		}
	}
	return oldest, nil
}

// removes reports whether a stream removes messages by their age, or its oldest for new ones. With
// the discard policy "new" it refuses new ones instead.
func removes(c jetstream.StreamConfig) bool {
	return c.MaxAge > 0 || c.Discard == jetstream.DiscardOld && (c.MaxBytes > 0 || c.MaxMsgs > 0)
}

// ratio is the part of the stream's retention that is left for a message; nil: all of it. Bytes and
// messages between it and the stream's end are taken as spread evenly over the sequences.
func ratio(info *jetstream.StreamInfo, m *store.Message, now time.Time) float64 {
	left := 1.0
	if m == nil {
		return left
	}
	if age := info.Config.MaxAge; age > 0 {
		left = min(left, 1-now.Sub(m.Stored).Seconds()/age.Seconds())
	}
	state := info.State
	newer := state.LastSeq < m.Sequence || state.LastSeq < state.FirstSeq // than info
	if newer || info.Config.Discard == jetstream.DiscardNew {
		return max(0, left)
	}
	first := min(state.FirstSeq, m.Sequence)
	share := float64(state.LastSeq-m.Sequence+1) / float64(state.LastSeq-first+1)
	if limit := info.Config.MaxBytes; limit > 0 {
		left = min(left, 1-share*float64(state.Bytes)/float64(limit))
	}
	if limit := info.Config.MaxMsgs; limit > 0 {
		left = min(left, 1-share*float64(state.Msgs)/float64(limit))
	}
	return max(0, left)
}
