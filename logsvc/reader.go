package logsvc

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
)

const (
	// probeInterval is how long nothing is sent before the server is asked
	// whether the reader is still there.
	probeInterval = 500 * time.Millisecond
	// missingInterval is how often it is asked when the reader seems to be gone.
	missingInterval = 100 * time.Millisecond
	// goneAfter is how long the reader may be missing: clients reconnect after 2 s, and
	// some time later when their server is busy.
	goneAfter = 5 * time.Second
	// goneAfterReconnect is the same when it was this side's connection that
	// was lost: the reader's may have been, too.
	goneAfterReconnect = 10 * time.Second
	// stalledAfter is how long a reader that acknowledges may give no sign of
	// life while something waits for it.
	stalledAfter = time.Minute
	// maxReport is how long a server's report on a probe may be, and reportsPerProbe how
	// many may come for one, of the servers on its way: those who may acknowledge can publish
	// to their subject too.
	maxReport       = 16 << 10
	reportsPerProbe = 8
	// sentBefore is how many messages are remembered for the server to report that
	// nobody listened to them. Its reports come within milliseconds.
	sentBefore = 256
)

// The words that stand in the place of a message's number where no message is
// acknowledged.
const (
	tokenProbe = "probe" // what the server says when nobody listens
	tokenTrace = "trace" // where a message that was only asked about would go
)

// reader is what is known of those who listen to a stream. What it knows comes
// from the server, which answers a message to a subject that nobody listens to,
// and from the acknowledgements.
type reader struct {
	mu      sync.Mutex
	missing time.Time     // since when nobody listens; zero: somebody does, as far as is known
	back    chan struct{} // closed when missing becomes zero
	heard   time.Time     // the last acknowledgement
	found   chan struct{} // closed when the server has named a listener
	sent    time.Time     // the last message or probe
	reports int           // how many may come for the last probe

	numbered [sentBefore]numbered // the last messages with lines that are not sent again
	missed   int64                // lines in messages that nobody listened to
}

// numbered is what is remembered of a message.
type numbered struct {
	seq   uint64
	lines int
}

func newReader() *reader {
	return &reader{heard: time.Now(), found: make(chan struct{})}
}

// absent is told that nobody listens.
func (r *reader) absent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.missing.IsZero() {
		r.missing, r.back = time.Now(), make(chan struct{})
	}
}

// present is told that somebody listens.
func (r *reader) present() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.missing.IsZero() {
		r.missing = time.Time{}
		close(r.back)
	}
	select {
	case <-r.found:
	default:
		close(r.found)
	}
}

// alive is told of a sign of life of the reader itself.
func (r *reader) alive() {
	r.present()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = time.Now()
}

// excuse counts the reader's absence and silence from now on.
func (r *reader) excuse(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = now
	if !r.missing.IsZero() {
		r.missing = now
	}
}

// hold waits as long as nobody listens.
func (r *reader) hold(ctx context.Context) error {
	r.mu.Lock()
	back := r.back
	if r.missing.IsZero() {
		back = nil
	}
	r.mu.Unlock()
	if back == nil {
		return context.Cause(ctx)
	}
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isSending notes that a message goes out, with lines that will not be sent again.
func (r *reader) isSending(seq uint64, lines int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = time.Now()
	if lines > 0 {
		r.numbered[seq%sentBefore] = numbered{seq, lines}
	}
}

// isProbing notes that a probe goes out.
func (r *reader) isProbing() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent, r.reports = time.Now(), reportsPerProbe
}

// expects reports whether a report on a probe may come, and counts it.
func (r *reader) expects() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports--
	return r.reports >= 0
}

// undelivered notes that nobody listened to a message, and returns how many lines are
// lost with it.
func (r *reader) undelivered(seq uint64) (lines int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.numbered[seq%sentBefore]
	if n.seq == seq {
		lines, n.lines = n.lines, 0
		r.missed += int64(lines)
	}
	return lines
}

// delivered is how many of the lines that were sent somebody listened to, as far as is
// known.
func (r *reader) delivered(lines int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return lines - r.missed
}

// state is since when the reader is missing (0: it is not), how long ago it was
// heard, and whether it is time to ask for it.
func (r *reader) state(now time.Time) (missing, silent time.Duration, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	silent = now.Sub(r.heard)
	if !r.missing.IsZero() {
		return max(now.Sub(r.missing), 1), silent, true
	}
	return 0, silent, now.Sub(r.sent) >= probeInterval
}

// hears takes what comes to the acknowledgement subjects of a stream.
func (s *stream) hears(msg *nats.Msg) {
	_, _, token, err := s.names.ParseLogsAck(msg.Subject)
	if err != nil {
		return
	}
	seq, notNumber := strconv.ParseUint(token, 10, 64)
	switch {
	case len(msg.Data) == 0 && msg.Header.Get(subjects.HeaderStatus) == subjects.StatusNoResponders:
		s.reader.absent()
		if notNumber == nil {
			s.metrics.undelivered.Add(float64(s.reader.undelivered(seq)))
		}
	case token == tokenTrace:
		if s.reader.expects() && namesListener(msg.Data) {
			s.reader.present()
		}
	case token == tokenProbe:
	default:
		s.reader.alive()
		if notNumber == nil {
			if b := s.window.acknowledge(seq); b != nil {
				s.out.done(b)
			}
		}
	}
}

// namesListener tells whether a server's report on the way of a message ends
// with somebody who would have got it. A report that is too long is none.
func namesListener(report []byte) bool {
	if len(report) > maxReport {
		return false
	}
	var trace struct {
		Events []struct {
			Type string `json:"type"`
		} `json:"events"`
	}
	if json.Unmarshal(report, &trace) != nil {
		return false
	}
	for _, event := range trace.Events {
		if event.Type == "eg" {
			return true
		}
	}
	return false
}

// watch looks after the reader until ctx is done, and ends the stream when it
// is gone for good.
func (s *stream) watch(ctx context.Context, end context.CancelCauseFunc) {
	if s.far {
		return // the server would not tell
	}
	tick := time.NewTicker(missingInterval)
	defer tick.Stop()
	reconnects := s.nc.Stats().Reconnects
	reconnected := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if n := s.nc.Stats().Reconnects; n != reconnects {
			reconnects, reconnected = n, now
		}
		if !s.nc.IsConnected() {
			// Nobody can be heard; that is not the reader's fault.
			s.reader.excuse(now)
			reconnected = now
		}
		missing, silent, ask := s.reader.state(now)
		patience := goneAfter
		if now.Sub(reconnected) < 2*goneAfterReconnect {
			patience = goneAfterReconnect
		}
		switch {
		case missing > patience:
			end(errGone)
			return
		case min(silent, s.window.waiting(now)) > stalledAfter:
			end(errStalled)
			return
		case ask:
			s.probe()
		}
		if missing == 0 {
			s.sendAgain(now)
		}
	}
}

// probe asks the server whether somebody listens, without a word to those who
// do. What cannot be asked now is asked next time.
func (s *stream) probe() {
	s.reader.isProbing()
	_ = s.nc.PublishMsg(&nats.Msg{
		Subject: s.target,
		Reply:   s.ack + tokenProbe,
		Header: nats.Header{
			subjects.HeaderTraceOnly: {subjects.FlagTrue},
			subjects.HeaderTraceDest: {s.ack + tokenTrace},
		},
	})
}

// sendAgain sends what a reader that acknowledges seems to have missed.
func (s *stream) sendAgain(now time.Time) {
	for _, msg := range s.window.overdue(now) {
		if s.nc.PublishMsg(msg) != nil {
			return // it stays open
		}
		s.metrics.resent.Inc()
	}
}
