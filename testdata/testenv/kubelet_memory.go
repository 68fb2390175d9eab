package testenv

import "time"

const (
	// chunkSize bounds what a log has in one piece, and so what is sent at once.
	chunkSize = 1 << 20
	// stampFormat has the same length at all times, in UTC.
	stampFormat = "2006-01-02T15:04:05.000000000Z "
	stampLength = len(stampFormat)
)

// memoryLog is the log of one instance of a container in memory, in containerd's form. The pod guards it.
type memoryLog struct {
	file  *logFile // the current one
	inner bool     // the line of the file's last record goes on
}

func newMemoryLog() *memoryLog { return &memoryLog{file: new(logFile)} }

func (m *memoryLog) add(at time.Time, partial bool, _ string, text []byte) {
	m.file.add(at.UnixNano(), m.inner, text, !partial)
	m.inner = partial
}

func (m *memoryLog) rotate() error {
	m.file = new(logFile)
	return nil
}

func (*memoryLog) commit() error { return nil }
func (*memoryLog) close() error  { return nil }

// logFile is a log in memory between two rotations. It only grows; readers keep
// slices of it while it does.
type logFile struct {
	chunks []*chunk
	stamp  stamper
}

// chunk is a piece of a file as it is sent with timestamps: without them, a
// reader leaves out the first bytes of each line.
type chunk struct {
	first   int // the index of its first record in the file
	data    []byte
	records []record
}

// record is a line of the log's file: a line of the application, or a piece of one.
type record struct {
	nanos int64  // its time
	end   uint32 // where it ends in the chunk's data
	inner bool   // it continues a line, and has no timestamp
}

// len is the number of records.
func (f *logFile) len() int {
	if len(f.chunks) == 0 {
		return 0
	}
	last := f.chunks[len(f.chunks)-1]
	return last.first + len(last.records)
}

func (f *logFile) add(nanos int64, inner bool, text []byte, newline bool) {
	c := f.tip(len(text) + stampLength + 1)
	if !inner {
		c.data = f.stamp.append(c.data, nanos)
	}
	c.data = append(c.data, text...)
	if newline {
		c.data = append(c.data, '\n')
	}
	c.records = append(c.records, record{nanos, uint32(len(c.data)), inner})
}

// tip is the chunk to append so many bytes to.
func (f *logFile) tip(size int) *chunk {
	if n := len(f.chunks); n > 0 && len(f.chunks[n-1].data)+size <= chunkSize {
		return f.chunks[n-1]
	}
	c := &chunk{first: f.len()}
	if len(f.chunks) > 0 {
		// More will come: spare it the growing.
		c.data = make([]byte, 0, chunkSize)
		c.records = make([]record, 0, len(f.chunks[len(f.chunks)-1].records))
	}
	f.chunks = append(f.chunks, c)
	return c
}

// stamper formats times, of which most share their second with the one before.
type stamper struct {
	second int64
	text   []byte
}

func (s *stamper) append(dst []byte, nanos int64) []byte {
	second, rest := nanos/1e9, nanos%1e9
	if s.text == nil || s.second != second {
		s.second = second
		s.text = time.Unix(second, 0).UTC().AppendFormat(s.text[:0], stampFormat)
	}
	dst = append(dst, s.text...)
	for i := len(dst) - len("Z ") - 1; rest > 0; i-- {
		dst[i] = byte('0' + rest%10)
		rest /= 10
	}
	return dst
}
