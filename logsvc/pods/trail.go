package pods

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math/bits"
	"time"

	"github.com/appbridge/appbridge/logsvc"
)

const (
	// trailLines is how many lines a trail has at most, and trailBytes how much text. A response that is
	// searched for them must hold as many.
	trailLines = 256
	trailBytes = 64 << 10
)

// windows are the numbers of last lines that a position has a hash of. A trail with fewer lines than
// the largest one has a hash of all of them in its place.
var windows = [...]int{1, 4, 16, 64, trailLines}

// trail is the last lines of a log that were delivered. Times are no help in finding them again: a
// node's clock steps back, and many lines share a time. Their sequence is.
type trail struct {
	hashes [trailLines]uint64
	sizes  [trailLines]int
	added  int // lines ever; line i is at i modulo trailLines
	lines  int // the last ones that count
	bytes  int // of their text
	last   int64
	same   uint64
	begun  bool
	// before is how many lines must come before one for it to begin the lines of its time. 2: the
	// first line that was added may be a part of a line, with a time of its own. 1: it is a line. 0: no
	// line of its time came before it.
	before int
	// whole: the first line that was added is the first of the file.
	whole bool
	// filtered: lines may be missing where the time changes.
	filtered bool
	// given is a position of which the lines themselves are not known. They are when it is found.
	given *position
}

// wholeTrail is the trail of a file that is read from its beginning.
func wholeTrail() trail { return trail{whole: true} }

// trailAt is the trail of a position.
func trailAt(p position) trail {
	return trail{given: &p, last: p.last, same: p.same, begun: p.begun}
}

// mark is what a trail keeps of a line.
type mark struct {
	hash uint64
	at   int64 // its time, in nanoseconds
	size int
}

func markOf(line logsvc.Line) mark {
	at := line.Time.UnixNano()
	return mark{hashLine(at, line.Text, line.Cut), at, len(line.Text)}
}

func (tr *trail) add(m mark) {
	if tr.added > 0 && m.at == tr.last {
		tr.same++
	} else {
		tr.same, tr.begun = 1, tr.added >= tr.before
		if tr.filtered {
			tr.lines, tr.bytes = 0, 0
		}
	}
	tr.last = m.at
	i := tr.added % trailLines
	if tr.lines == trailLines {
		tr.lines--
		tr.bytes -= tr.sizes[i]
	}
	tr.hashes[i], tr.sizes[i] = m.hash, m.size
	tr.added++
	tr.lines++
	tr.bytes += m.size
	for ; tr.bytes > trailBytes && tr.lines > 1; tr.lines-- {
		tr.bytes -= tr.sizes[(tr.added-tr.lines)%trailLines]
	}
}

// sum is the hash of the last n lines, at most trailLines and as many as were added.
func (tr *trail) sum(n int) uint64 {
	var sum uint64
	for i := tr.added - n; i < tr.added; i++ {
		sum = sum*hashKeys[0] + tr.hashes[i%trailLines]
	}
	return sum
}

// keep keeps at most the last n lines.
func (tr *trail) keep(n int) {
	for ; tr.lines > n; tr.lines-- {
		tr.bytes -= tr.sizes[(tr.added-tr.lines)%trailLines]
	}
}

func (tr *trail) position() position {
	if tr.given != nil {
		return *tr.given
	}
	p := position{lines: tr.lines, last: tr.last, same: tr.same, begun: tr.begun}
	for i, n := range windows {
		p.sums[i] = tr.sum(min(n, tr.lines))
	}
	return p
}

// position is a trail in a form that can be sent.
type position struct {
	sums  [len(windows)]uint64
	lines int    // of the trail
	last  int64  // the time of the last one, in nanoseconds
	same  uint64 // how many lines in a row had this time; at least as many if the first one was not seen
	begun bool   // the first one of them was seen
}

// The form of a position: the hashes, the time, and a number of 8 bytes each, big endian, then one
// byte for the lines less one. The number is same in the upper 63 bits and begun in the lowest.
const positionBytes = len(windows)*8 + 8 + 8 + 1

var positionEncoding = base64.RawURLEncoding.Strict()

// MarshalText returns 76 characters.
func (p position) MarshalText() ([]byte, error) {
	raw := make([]byte, 0, positionBytes)
	for _, sum := range p.sums {
		raw = binary.BigEndian.AppendUint64(raw, sum)
	}
	raw = binary.BigEndian.AppendUint64(raw, uint64(p.last))
	same := p.same << 1
	if p.begun {
		same |= 1
	}
	raw = binary.BigEndian.AppendUint64(raw, same)
	raw = append(raw, byte(p.lines-1))
	return positionEncoding.AppendEncode(nil, raw), nil
}

// UnmarshalText accepts what MarshalText returns.
func (p *position) UnmarshalText(text []byte) error {
	raw, err := positionEncoding.AppendDecode(nil, text)
	if err != nil || len(raw) != positionBytes {
		return errors.New("not a position in a log")
	}
	for i := range p.sums {
		p.sums[i] = binary.BigEndian.Uint64(raw[i*8:])
	}
	raw = raw[len(p.sums)*8:]
	p.last = int64(binary.BigEndian.Uint64(raw))
	same := binary.BigEndian.Uint64(raw[8:])
	p.same, p.begun = same>>1, same&1 == 1
	p.lines = int(raw[16]) + 1
	return nil
}

// time returns the time of the last line.
func (p position) time() time.Time { return time.Unix(0, p.last) }

// hashKeys are fixed: a position is found by other processes and later versions. They are odd numbers
// without a pattern.
var hashKeys = [...]uint64{0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93}

// hashLine is the hash of a line with its time. Of a line that is cut it has the beginning and the length.
func hashLine(at int64, text []byte, cut int64) uint64 {
	h := fold(uint64(at)^hashKeys[0], uint64(len(text))<<40^uint64(cut)^hashKeys[1])
	for ; len(text) >= 16; text = text[16:] {
		h = fold(binary.LittleEndian.Uint64(text)^hashKeys[2], binary.LittleEndian.Uint64(text[8:])^h)
	}
	var rest [16]byte
	copy(rest[:], text)
	h = fold(binary.LittleEndian.Uint64(rest[:])^hashKeys[3], binary.LittleEndian.Uint64(rest[8:])^h)
	return fold(h^hashKeys[0], hashKeys[1])
}

// fold mixes two words: the halves of their product, xored.
func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}
