// Package logline reads the lines of container logs as Kubernetes returns them: bytes that end
// with "\n", each line after its time. It does no I/O. All functions are safe for concurrent use.
package logline

import (
	"bytes"
	"time"
)

// TimeBytes is the length of the longest time that Kubernetes writes before a line, with the space
// after it.
const TimeBytes = len("2006-01-02T15:04:05.000000000+07:00 ")

// Parse splits a line into the time when it was written and its message. A line
// has a time when the text before its first space is an RFC 3339 time: capital T
// and Z, a fraction after a point or a comma whose digits past the ninth do
// not count, an hour of one or two digits, an offset of up to 24 hours. Any
// other line is a message as a whole and its time is zero.
//
// The time is in UTC, and message is a part of line. (The first instant of the year 1 is a zero
// time, too, but its message is shorter than the line.)
func Parse(line []byte) (t time.Time, message []byte) {
	if t, n := parseFixed(line); n > 0 {
		return t, line[n:]
	}
	i := bytes.IndexByte(line, ' ')
	if !plausible(line, i) {
		return time.Time{}, line
	}
	// The rule is what the standard library accepts as RFC 3339.
	t, err := time.Parse(time.RFC3339Nano, string(line[:i]))
	if err != nil {
		return time.Time{}, line
	}
	return t.UTC(), line[i+1:]
}

// plausible rejects most lines without a time before they are parsed; end is the index of their
// first space.
func plausible(line []byte, end int) bool {
	return end >= len("2006-01-02T5:04:05Z") && line[4] == '-' && line[7] == '-' && line[10] == 'T' && digit(line[0])
}

// parseFixed reads the form that the kubelet writes, nine digits after the point
// and Z or an offset, and returns its length with the space after it; 0 for
// any other form. It runs once per line and does not allocate.
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

// parseOffset returns the offset at the beginning of b, such as "+07:00", in seconds.
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

// fields reads numbers; ok is false after one that is not a number.
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

// TrimCR removes every "\r" at the end of a line.
func TrimCR(line []byte) []byte {
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line
}
