// Package logline reads the lines of container logs as Kubernetes hands them
// out: bytes cut at "\n", each line after the time when it was written. It does
// no I/O; all functions are safe for concurrent use.
package logline

import (
	"bytes"
	"iter"
	"slices"
	"time"
)

// TimeBytes is how long the time at the beginning of a line gets where
// Kubernetes writes it, with the space behind it.
const TimeBytes = len("2006-01-02T15:04:05.000000000+07:00 ")

// MaxBatch is how many lines Flyte puts into one message at most.
const MaxBatch = 100

// Parse splits a line into the time when it was written and its message. A line
// has a time when the text before its first space is an RFC 3339 time: capital T
// and Z, a fraction after a point or a comma whose digits past the ninth do
// not count, an hour of one or two digits, an offset of up to 24 hours. Any
// other line is a message as a whole and its time is zero.
//
// The time is in UTC, and message is a part of line. (The one time that cannot be
// told from none is the first instant of the year 1; the message is shorter
// than the line then as well.)
func Parse(line []byte) (t time.Time, message []byte) {
	if t, n := parseFixed(line); n > 0 {
		return t, line[n:]
	}
	i := bytes.IndexByte(line, ' ')
	if !plausible(line, i) {
		return time.Time{}, line
	}
	// What the standard library takes for RFC 3339 is the rule itself.
	t, err := time.Parse(time.RFC3339Nano, string(line[:i]))
	if err != nil {
		return time.Time{}, line
	}
	return t.UTC(), line[i+1:]
}

// plausible spares lines without a time the price of a failed parse; end is
// where their first space is.
func plausible(line []byte, end int) bool {
	return end >= len("2006-01-02T5:04:05Z") && line[4] == '-' && line[7] == '-' && line[10] == 'T' && digit(line[0])
}

// parseFixed reads the form that the kubelet writes, nine digits after the point
// and Z or an offset, and returns how long it is with the space behind it; 0 for
// any other form. It runs once per line and allocates nothing.
func parseFixed(line []byte) (time.Time, int) {
	const zone = len("2006-01-02T15:04:05.000000000")
	if len(line) < zone+2 {
		return time.Time{}, 0
	}
	b := line[:zone+2]
	if b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[19] != '.' {
		return time.Time{}, 0
	}
	f := fields{ok: true}
	year := f.two(b, 0)*100 + f.two(b, 2)
	month, day := f.two(b, 5), f.two(b, 8)
	hour, minute, second := f.two(b, 11), f.two(b, 14), f.two(b, 17)
	nanos := f.two(b, 20)*10_000_000 + f.two(b, 22)*100_000 + f.two(b, 24)*1000 + f.two(b, 26)*10
	if c := b[28] - '0'; c <= 9 {
		nanos += int(c)
	} else {
		f.ok = false
	}
	if !f.ok || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, 0
	}
	offset, end := 0, zone+1
	if b[zone] != 'Z' {
		var ok bool
		if offset, ok = parseOffset(line[zone:]); !ok {
			return time.Time{}, 0
		}
		end = zone + len("+07:00")
	}
	if line[end] != ' ' {
		return time.Time{}, 0
	}
	return time.Date(year, time.Month(month), day, hour, minute, second-offset, nanos, time.UTC), end + 1
}

// parseOffset reads "+07:00" and more behind it, in seconds.
func parseOffset(b []byte) (seconds int, ok bool) {
	if len(b) <= len("+07:00") || b[3] != ':' || (b[0] != '+' && b[0] != '-') {
		return 0, false
	}
	f := fields{ok: true}
	hours, minutes := f.two(b, 1), f.two(b, 4)
	if !f.ok || hours > 23 || minutes > 59 {
		return 0, false
	}
	seconds = (hours*60 + minutes) * 60
	if b[0] == '-' {
		seconds = -seconds
	}
	return seconds, true
}

// fields reads numbers and remembers whether all of them were.
type fields struct{ ok bool }

func (f *fields) two(b []byte, i int) int {
	tens, ones := b[i]-'0', b[i+1]-'0'
	if tens > 9 || ones > 9 {
		f.ok = false
	}
	return int(tens)*10 + int(ones)
}

func digit(c byte) bool { return c-'0' <= 9 }

func daysIn(year, month int) int {
	switch month {
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

// TrimCR takes off every "\r" at the end of a line; others stay.
func TrimCR(line []byte) []byte {
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line
}

// Batches are the lines in groups of at most size; a size below 1 stands for
// MaxBatch. No lines make no batch.
func Batches[L any](lines []L, size int) iter.Seq[[]L] {
	if size < 1 {
		size = MaxBatch
	}
	return slices.Chunk(lines, size)
}
