package projector

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
)

const (
	// memoryBytes bounds what a memory holds. At a window of 256 appends it is full only while the
	// bucket is far behind.
	memoryBytes = 16 << 20
	// maxReceipts bounds the events whose place in the stream is known until they come back. What is
	// acknowledged beyond that is not compared.
	maxReceipts = 1 << 14
	// ackTime is how long a delivered message waits for an acknowledgement that is under way.
	ackTime = 500 * time.Millisecond
)

// eventCache holds the events of this session that the stream acknowledged, as no duplicates, and
// that are not projected yet. It is bounded: what is acknowledged while it is full is not kept, and
// is then fetched from the stream's leader as the events of others are. Safe for concurrent use.
//
// An eventCache is a shortcut, the stream is the truth. So an event counts only for a message at
// its sequence, of its subject, with exactly its headers and its size, and only on the connection
// over which it was acknowledged: a stream that lost its tail gives sequences out again, and its
// server was restarted then.
type eventCache struct {
	limit int           // bytes, memoryBytes but in tests
	wait  time.Duration // ackTime but in tests

	mu         sync.Mutex
	events     []remembered  // in the order of the stream
	receipts   []receipt     // likewise; over all connections
	late       []receipt     // of events that were delivered before they were acknowledged
	bytes      int           // of events
	connection uint64        // the number of the connection over which the newest append was sent
	from       uint64        // the first sequence that was sent over it
	sent       uint64        // the highest sequence that an append of this session may get
	answered   uint64        // the highest that one has got
	projected  uint64        // what is up to here is not needed
	delivered  uint64        // highest sequence of a delivered message
	changed    chan struct{} // closed when answered rises; nil while nothing waits
}

// receipt is an event that the stream has acknowledged at a sequence.
type receipt struct {
	sequence    uint64
	subject, id string
}

// remembered is an event that the stream has.
type remembered struct {
	sequence uint64
	subject  string
	header   nats.Header
	size     int // of the body
	bytes    int // of the whole message
	record   *app.Record
}

// noteSent notes that an append is sent over a connection, and gets sequence if the stream takes
// it.
func (m *eventCache) noteSent(sequence, connection uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if connection != m.connection || m.from == 0 {
		m.connection, m.from, m.events, m.bytes = connection, sequence, nil, 0
	}
	m.sent = max(m.sent, sequence)
}

// noteStored notes that an append of this session is stored at sequence. ev is nil unless its
// acknowledgement was the answer.
func (m *eventCache) noteStored(sequence uint64, ev *app.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ev != nil && sequence > m.answered {
		receipts := &m.receipts
		if sequence <= max(m.delivered, m.projected) {
			receipts = &m.late
		}
		if len(*receipts) < maxReceipts {
			*receipts = append(*receipts, receipt{sequence, ev.Msg.Subject, ev.Msg.Header.Get(subjects.CEID)})
		}
	}
	if ev != nil && m.from > 0 && sequence >= m.from && sequence > max(m.projected, m.answered) {
		if size := ev.Msg.Size(); m.bytes+size <= m.limit {
			m.bytes += size
			m.events = append(m.events, remembered{sequence, ev.Msg.Subject, ev.Msg.Header, len(ev.Msg.Data), size, ev.Record})
		}
	}
	m.answered = max(m.answered, sequence)
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// record returns the record of a message that was delivered without its body, nil if it has to be
// fetched. It waits, for ackTime at most, for an acknowledgement that is under way.
func (m *eventCache) record(ctx context.Context, d *delivery, connection func() uint64) *app.Record {
	if changed := m.pending(d.sequence); changed != nil {
		ctx, cancel := context.WithTimeout(ctx, m.wait)
		defer cancel()
		for changed != nil && ctx.Err() == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			changed = m.pending(d.sequence)
		}
	}
	e, ok := m.at(d.sequence, connection())
	if !ok || !e.is(d) {
		return nil
	}
	return e.record
}

// at returns what was acknowledged at sequence, over this connection.
func (m *eventCache) at(sequence, connection uint64) (e remembered, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, found := slices.BinarySearchFunc(m.events, sequence, func(e remembered, sequence uint64) int {
		return cmp.Compare(e.sequence, sequence)
	})
	if !found || connection != m.connection {
		return e, false
	}
	return m.events[i], true
}

// pending returns a channel that is closed with the next answer to an append, nil if no append
// under way can get sequence.
func (m *eventCache) pending(sequence uint64) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if sequence > m.sent || sequence <= m.answered {
		return nil
	}
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

// forget drops the events up to sequence: they are projected.
func (m *eventCache) forget(sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.projected = max(m.projected, sequence)
	n := 0
	for n < len(m.events) && m.events[n].sequence <= sequence {
		m.bytes -= m.events[n].bytes
		m.events[n] = remembered{}
		n++
	}
	m.events = m.events[n:]
	n = 0
	for n < len(m.receipts) && m.receipts[n].sequence <= sequence {
		n++
	}
	m.receipts = m.receipts[n:]
}

// deliver notes that a message is delivered, and returns the receipt of its sequence. Receipts up to there
// that come later are late: nothing else would compare them.
func (m *eventCache) deliver(sequence uint64) (r receipt, ok bool) {
	m.mu.Lock()
	m.delivered = max(m.delivered, sequence)
	m.mu.Unlock()
	return m.receiptIn(sequence, sequence)
}

// receiptIn returns the oldest receipt of the sequences from to to.
func (m *eventCache) receiptIn(from, to uint64) (r receipt, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.receipts, from, func(r receipt, sequence uint64) int { return cmp.Compare(r.sequence, sequence) })
	if i == len(m.receipts) || m.receipts[i].sequence > to {
		return r, false
	}
	return m.receipts[i], true
}

// oldestLate returns the oldest event that was acknowledged after its delivery and is not compared yet.
func (m *eventCache) oldestLate() (r receipt, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.late) == 0 {
		return r, false
	}
	return m.late[0], true
}

// dropLate drops it: it is compared.
func (m *eventCache) dropLate() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = m.late[1:]
}

// clear drops all events: a projection that starts over reads the stream alone.
func (m *eventCache) clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events, m.bytes = nil, 0
}

func (e remembered) bodySize() string { return strconv.Itoa(e.size) }

// is reports whether the event and a delivered message are the same.
func (e remembered) is(d *delivery) bool {
	size := d.header[subjects.HeaderMessageSize]
	return e.subject == d.subject && len(size) == 1 && size[0] == e.bodySize() &&
		carriesAll(d.header, e.header) && carriesAll(e.header, d.header)
}

// carriesAll reports whether h has every header of an event that of has, with the same values.
func carriesAll(h, of nats.Header) bool {
	for name, values := range of {
		if app.Carried(name) && !slices.Equal(h[name], values) {
			return false
		}
	}
	return true
}
