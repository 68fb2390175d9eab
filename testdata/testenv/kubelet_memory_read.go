package testenv

import (
	"context"
	"net/http"
	"sort"
)

// batchSize is about how many bytes of a log are sent at once.
const batchSize = 128 << 10

// batch is a run of records of one chunk.
type batch struct {
	data    []byte // of the chunk, from its beginning
	start   uint32 // where the first record begins
	records []record
	cut     bool // break off inside it
}

// send sends a log in memory until it ends, which for a follow of a container that runs
// is when that ends, or until nobody reads it any more.
func (p *Pod) send(ctx context.Context, w http.ResponseWriter, f *follower, h hindrance) {
	control := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil || !h.pass(ctx) {
		return
	}
	for {
		if control.Flush() != nil || f.limit == 0 || !sleep(ctx, h.pause) {
			return
		}
		if ctx.Err() != nil {
			return
		}
		b, changed := p.next(f)
		if len(b.records) == 0 {
			if changed == nil {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		text := f.render(b)
		if b.cut {
			text = text[:len(text)/2]
		}
		if f.limit >= 0 {
			text = text[:min(int64(len(text)), f.limit)]
			f.limit -= int64(len(text))
		}
		n, err := w.Write(text)
		f.sent.Add(int64(n))
		if err != nil {
			return
		}
		if b.cut {
			_ = control.Flush()
			panic(http.ErrAbortHandler) // net/http closes the connection and says nothing
		}
	}
}

// next takes the next records of the log. There are none at its end: the
// channel then says when to look again, or, being nil, that nothing will come.
func (p *Pod) next(f *follower) (batch, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for f.left != 0 {
		if f.chunk < len(f.file.chunks) {
			c := f.file.chunks[f.chunk]
			if f.record < len(c.records) {
				return f.take(c), nil
			}
			if f.chunk+1 < len(f.file.chunks) {
				f.chunk, f.record = f.chunk+1, 0
				continue
			}
		}
		if !f.follow {
			break
		}
		if f.file != f.memory.file { // rotated
			f.file, f.chunk, f.record = f.memory.file, 0, 0
			continue
		}
		if !f.instance.running {
			break
		}
		return batch{}, p.changed
	}
	return batch{}, nil
}

// take takes records of a chunk that has some.
func (f *follower) take(c *chunk) batch {
	b := batch{data: c.data, records: c.records[f.record:]}
	if f.record > 0 {
		b.start = c.records[f.record-1].end
	}
	n := sort.Search(len(b.records), func(i int) bool { return b.records[i].end > b.start+batchSize })
	n = max(n, 1)
	if f.left > 0 {
		n = min(n, f.left)
		f.left -= n
	}
	if f.trap == f.file {
		switch before := f.trapAt - c.first - f.record; {
		case before == 0:
			n, b.cut = 1, true
		case before > 0:
			n = min(n, before)
		}
	}
	b.records = b.records[:n]
	f.record += n
	return b
}

// render is the text of a batch as the request wants it. It is valid until the
// next call.
func (f *follower) render(b batch) []byte {
	stamped, first := f.timestamps, !f.begun
	f.begun = true
	if stamped && f.complete(b, first) {
		return b.data[b.start:b.records[len(b.records)-1].end]
	}
	f.text = f.text[:0]
	start := b.start
	for _, r := range b.records {
		text := b.data[start:r.end]
		start = r.end
		if !r.inner && !stamped {
			text = text[stampLength:]
		}
		if r.nanos >= f.oldest {
			if r.inner && stamped && first {
				f.text = new(stamper).append(f.text, r.nanos)
			}
			f.text = append(f.text, text...)
		}
		first = false
	}
	return f.text
}

// complete tells whether a batch can be sent as it is.
func (f *follower) complete(b batch, first bool) bool {
	if first && b.records[0].inner {
		return false
	}
	for _, r := range b.records {
		if r.nanos < f.oldest {
			return false
		}
	}
	return true
}
