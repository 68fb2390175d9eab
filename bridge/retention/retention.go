package retention

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/store"
)

const (
	// interval is how often the consumers are read.
	interval = 15 * time.Second
	// maxFilters is how many filters of a consumer are read one by one.
	maxFilters = 16
	// maxConsumers bounds the gauge, and the reads of one look.
	maxConsumers = 1000
)

// Config of a Watch.
type Config struct {
	NATS     *nats.Conn
	JS       jetstream.JetStream
	Stream   string
	Subjects string // of all messages of the stream
	Log      *zap.Logger
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

// Run measures until ctx ends. After a failure there is no value until the next look succeeds.
func (w *Watch) Run(ctx context.Context, cfg Config) {
	defer w.left.Store(nil)
	report := retry.Log{Logger: cfg.Log}
	for {
		left, err := measure(ctx, cfg)
		switch {
		case err == nil:
			w.left.Store(&left)
		case ctx.Err() == nil && cfg.NATS.IsConnected():
			w.left.Store(nil)
			report.Warn("the durable consumers of the stream cannot be read", err)
		}
		if retry.Wait(ctx, interval) != nil {
			return
		}
	}
}

// measure returns what is left for each durable consumer.
func measure(ctx context.Context, cfg Config) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	stream, err := cfg.JS.Stream(ctx, cfg.Stream)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", cfg.Stream, err)
	}
	left := map[string]float64{}
	info := stream.CachedInfo()
	if c := info.Config; c.MaxAge == 0 && c.MaxBytes <= 0 && c.MaxMsgs <= 0 {
		return left, nil
	}
	consumers := stream.ListConsumers(ctx)
	for consumer := range consumers.Info() {
		if consumer.Config.Durable == "" || len(left) == maxConsumers {
			continue
		}
		oldest, err := unread(ctx, cfg, consumer)
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", consumer.Name, err)
		}
		left[consumer.Name] = ratio(info, oldest, time.Now())
	}
	return left, consumers.Err()
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
		filters = []string{cfg.Subjects}
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
	if state.LastSeq < m.Sequence || state.LastSeq < state.FirstSeq {
		return max(0, left) // newer than info
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
