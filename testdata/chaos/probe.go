package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The metrics that the harness reads; docs/metrics.md says what they mean.
const (
	metricLeader    = "appbridge_leader"
	metricPending   = "appbridge_changes_pending"
	metricBytes     = "appbridge_changes_pending_bytes"
	metricOldest    = "appbridge_oldest_pending_seconds"
	metricLag       = "appbridge_snapshot_lag_events"
	metricConflicts = "appbridge_fence_conflicts_total"
	metricOverflows = `appbridge_resyncs_total{cause="overflow"}`
	metricMerged    = "appbridge_updates_merged_total"
)

// status is what a bridge says of itself.
type status struct {
	at       time.Time
	answered bool   // it said anything at all
	ready    bool   // /readyz says 200
	why      string // what /readyz says otherwise
	metrics  map[string]float64
}

func (s status) leads() bool { return s.metrics[metricLeader] == 1 }

// oldest is when the oldest change was observed that the stream did not have
// yet; now if there was none.
func (s status) oldest() time.Time {
	return s.at.Add(-time.Duration(s.metrics[metricOldest] * float64(time.Second)))
}

// probe asks a bridge. One that does not answer in time is not ready.
func probe(ctx context.Context, address string) status {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s := status{at: time.Now()}
	code, body, err := get(ctx, "http://"+address+"/metrics")
	if err != nil || code != http.StatusOK {
		s.why = "it does not answer"
		return s
	}
	s.metrics = parseMetrics(body)
	code, body, err = get(ctx, "http://"+address+"/readyz")
	if err != nil {
		s.why = "it does not answer"
		return s
	}
	s.answered, s.ready, s.why = true, code == http.StatusOK, string(bytes.TrimSpace(body))
	return s
}

func get(ctx context.Context, url string) (code int, body []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end
	if body, err = io.ReadAll(resp.Body); err != nil {
		return 0, nil, fmt.Errorf("read %s: %w", url, err)
	}
	return resp.StatusCode, body, nil
}

// parseMetrics reads Prometheus' text format: each series with its labels as
// written. Lines of other forms are passed over.
func parseMetrics(text []byte) map[string]float64 {
	all := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			all[line[:at]] = value
		}
	}
	return all
}
