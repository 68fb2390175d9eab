// Package logline reads the lines of container logs as Kubernetes returns them: bytes that end
// with "\n", each line after its time. It does no I/O. All functions are safe for concurrent use.
package logline

import (
	"bytes"
	"time"
)

// Line is one line of a log.
type Line struct {
	// Time is when it was written; zero when it carries no time.
	Time time.Time
	// Text is the line without its line end: any bytes.
	Text []byte
	// Cut is how many bytes after Text are missing because the line was too long.
	Cut int64
}

// TimeBytes is the length of the longest time that Kubernetes writes before a line, with the space
// after it.
const TimeBytes = len("2006-01-02T15:04:05.000000000+07:00 ")

// Parse splits a line into the time when it was written, in UTC, and its message, a part of line. A
// line has a time when the text before its first space is an RFC 3339 time as the standard library
// accepts it. Any other line is a message as a whole and its time is zero. (The first instant of
// the year 1 is a zero time, too, but its message is shorter than the line.)
func Parse(line []byte) (t time.Time, message []byte) {
	end := bytes.IndexByte(line, ' ')
	// Most lines without a time need no attempt to parse it.
	if end < len("2006-01-02T5:04:05Z") || line[4] != '-' || line[7] != '-' || line[10] != 'T' || line[0]-'0' > 9 {
		return time.Time{}, line
	}
	t, err := time.Parse(time.RFC3339Nano, string(line[:end]))
	if err != nil {
		return time.Time{}, line
	}
	return t.UTC(), line[end+1:]
}
