package logsvc

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// probeInterval is how long a stream is idle before it probes for the reader.
	probeInterval = 500 * time.Millisecond
	// missingInterval is how often it probes when there is no subscriber.
	missingInterval = 100 * time.Millisecond
	// goneAfter is how long the reader may be missing: clients reconnect after 2 s, and
	// some time later when their server is busy.
	goneAfter = 5 * time.Second
	// goneAfterReconnect replaces it after an outage of the service's own connection: the
	// reader may have lost its connection, too.
	goneAfterReconnect = 10 * time.Second
	// stalledAfter is how long a reader may acknowledge nothing while messages are open.
	stalledAfter = time.Minute
	// maxReport is the size of a server's report on a probe, and reportsPerProbe the number of
	// reports, of the servers on the way. Readers can publish to their subject, too.
	maxReport       = 16 << 10
	reportsPerProbe = 8
	// sentBefore is how many messages are remembered for reports that they had no subscriber,
	// which come within milliseconds.
	sentBefore = 256
)

// The tokens that replace a message's number in reply subjects of probes.
const (
	tokenProbe = "probe" // receives 503 when there is no subscriber
	tokenTrace = "trace" // receives the traces
)

// reader is the state of the subscriber of a stream, from acknowledgements and from the server,
// which replies to messages without a subscriber.
type reader struct {
	mu      sync.Mutex
	missing time.Time     // since when there is no subscriber; zero: there is one
	present chan struct{} // closed while missing is zero
	lastAck time.Time     // the last acknowledgement
	sent    time.Time     // the last message or probe
	reports int           // how many may come for the last probe

	// sentLines are the last messages with lines that are not sent again.
	sentLines [sentBefore]struct {
		seq   uint64
		lines int
	}
	missed int64 // lines in messages without a subscriber
}

func newReader() *reader {
	r := &reader{lastAck: time.Now(), present: make(chan struct{})}
	close(r.present)
	return r
}

func (r *reader) markMissing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing.IsZero() {
		r.missing, r.present = time.Now(), make(chan struct{})
	}
}

func (r *reader) markPresent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.missing.IsZero() {
		r.missing = time.Time{}
		close(r.present)
	}
}

func (r *reader) markAlive() {
	r.markPresent()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastAck = time.Now()
}

// resetTimers restarts the times of a missing or silent reader.
func (r *reader) resetTimers(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastAck = now
	if !r.missing.IsZero() {
		r.missing = now
	}
}

func (r *reader) presence() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.present
}

// recordMessage records a message, with lines that are not sent again.
func (r *reader) recordMessage(seq uint64, lines int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = time.Now()
	if lines > 0 {
		n := &r.sentLines[seq%sentBefore]
		n.seq, n.lines = seq, lines
	}
}

func (r *reader) recordProbe() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.reports = time.Now(), reportsPerProbe
}

// allowReport counts a report on a probe, and returns false for those beyond the limit.
func (r *reader) allowReport() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports--
	return r.reports >= 0
}

// undelivered records that a message had no subscriber, and returns how many lines it had.
func (r *reader) undelivered(seq uint64) (lines int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.sentLines[seq%sentBefore]
	if n.seq == seq {
		lines, n.lines = n.lines, 0
		r.missed += int64(lines)
	}
	return lines
}

// delivered returns how many of the lines had a subscriber, as far as is known.
func (r *reader) delivered(lines int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lines - r.missed
}

// state returns for how long the reader is missing (0: it is not), the time since its last
// message, and whether a probe is due.
func (r *reader) state(now time.Time) (missing, silent time.Duration, probe bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	silent = now.Sub(r.lastAck)
	if !r.missing.IsZero() {
		return max(now.Sub(r.missing), 1), silent, true
	}
	return 0, silent, now.Sub(r.sent) >= probeInterval
}

// handleAck handles messages to the acknowledgement subjects of a stream.
func (s *stream) handleAck(msg *nats.Msg) {
	_, _, token, err := s.names.ParseLogsAck(msg.Subject)
	if err != nil {
		return
	}
	seq, notNumber := strconv.ParseUint(token, 10, 64)
	switch {
	case len(msg.Data) == 0 && msg.Header.Get(subjects.HeaderStatus) == subjects.StatusNoResponders:
		s.reader.markMissing()
		if notNumber == nil {
			s.metrics.undelivered.Add(float64(s.reader.undelivered(seq)))
		}
	case token == tokenTrace:
		if s.reader.allowReport() && namesListener(msg.Data) {
			s.reader.markPresent()
		}
	case token == tokenProbe:
	default:
		s.reader.markAlive()
		if notNumber == nil {
			if b := s.window.acknowledge(seq); b != nil {
				s.out.done(b)
			}
		}
	}
}

// namesListener reports whether a server's trace of a message has a subscriber. It ignores a trace
// that is too long.
func namesListener(report []byte) bool {
	type event struct {
		Type string `json:"type"`
	}
	var trace struct {
		Events []event `json:"events"`
	}
	if len(report) > maxReport || json.Unmarshal(report, &trace) != nil {
		return false
	}
	return slices.ContainsFunc(trace.Events, func(e event) bool { return e.Type == "eg" })
}

// monitor probes for the reader until ctx is done, sends unacknowledged messages again, and ends
// the stream when the reader is gone or stalled.
func (s *stream) monitor(ctx context.Context, end context.CancelCauseFunc) {
	if s.req.far() {
		return // the server does not reply to another account
	}
	tick := time.Tick(missingInterval)
	reconnects := s.nc.Stats().Reconnects
	reconnected := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		now := time.Now()
		if n := s.nc.Stats().Reconnects; n != reconnects {
			reconnects, reconnected = n, now
		}
		if !s.nc.IsConnected() {
			// The reader cannot acknowledge.
			s.reader.resetTimers(now)
			reconnected = now
		}
		missing, silent, probe := s.reader.state(now)
		patience := goneAfter
		if now.Sub(reconnected) < 2*goneAfterReconnect {
			patience = goneAfterReconnect
		}
		switch {
		case missing > patience, s.denied():
			end(errGone)
			return
		case min(silent, s.window.waiting(now)) > stalledAfter:
			end(errStalled)
			return
		case probe:
			s.probe()
		}
		if missing == 0 {
			s.sendAgain(now)
		}
	}
}

// denied reports whether the service may not publish to the reader: then the server reports nothing else.
// The connection knows its last error alone, and each probe of an idle stream has another one.
func (s *stream) denied() bool {
	err := s.nc.LastError()
	return errors.Is(err, nats.ErrPermissionViolation) && strings.HasSuffix(err.Error(), "Publish to "+strconv.Quote(s.target))
}

// probe makes the server report whether there is a subscriber, without a message to it. After an
// error the next tick probes again.
func (s *stream) probe() {
	s.reader.recordProbe()
	_ = s.nc.PublishMsg(&nats.Msg{
		Subject: s.target,
		Reply:   s.ack + tokenProbe,
		Header: nats.Header{
			subjects.HeaderTraceOnly: {subjects.FlagTrue},
			subjects.HeaderTraceDest: {s.ack + tokenTrace},
		},
	})
}

func (s *stream) sendAgain(now time.Time) {
	for _, msg := range s.window.overdue(now) {
		if s.nc.PublishMsg(msg) != nil {
			return // it stays open
		}
		s.metrics.resent.Inc()
	}
}
