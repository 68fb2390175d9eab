package kservice

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	maxProblems     = 32
	maxProblemBytes = 300
	maxValueBytes   = 64
)

// problems are what is wrong with an app. Their number and their length are
// bounded: what is wrong with an app is up to whoever wrote it.
type problems struct {
	found []string
	more  int
}

// add notes what is wrong with a field.
func (p *problems) add(field, wrong string) {
	p.addText(cut(field+": "+wrong, maxProblemBytes))
}

func (p *problems) addText(text string) {
	if len(p.found) == maxProblems {
		p.more++
		return
	}
	p.found = append(p.found, text)
}

// addValue notes that a field has a value that is not what is wanted.
func (p *problems) addValue(field, value, want string) {
	p.add(field, quoted(value)+": want "+want)
}

// texts are the problems, one each, in the order found.
func (p *problems) texts() []string {
	if p.more == 0 {
		return p.found
	}
	return append(p.found[:len(p.found):len(p.found)], fmt.Sprintf("and %d more", p.more))
}

// checkDuration looks whether a duration is one, and one that can be waited for.
func (p *problems) checkDuration(field string, d *durationpb.Duration) {
	switch {
	case d.CheckValid() != nil:
		written := fmt.Sprintf("%d seconds and %d nanoseconds", d.GetSeconds(), d.GetNanos())
		p.addValue(field, written, "a duration as protobuf has it")
	case d.GetSeconds() < 0 || d.GetNanos() < 0:
		p.addValue(field, durationText(d), "no negative duration")
	}
}

// durationText is a duration as protobuf JSON has it, also one too long for Go.
func durationText(d *durationpb.Duration) string {
	if d.GetNanos() == 0 {
		return strconv.FormatInt(d.GetSeconds(), 10) + "s"
	}
	sign := ""
	if d.GetSeconds() < 0 || d.GetNanos() < 0 {
		sign = "-"
	}
	return fmt.Sprintf("%s%d.%09ds", sign, max(d.GetSeconds(), -d.GetSeconds()), max(d.GetNanos(), -d.GetNanos()))
}

// quoted is a value for people: in quotes, on one line, and not too long.
func quoted(value string) string {
	if len(value) <= maxValueBytes {
		if q := strconv.Quote(value); len(q) <= maxValueBytes+2 {
			return q
		}
	}
	value = value[:min(len(value), maxValueBytes)]
	q := strconv.Quote(value)
	for len(q) > maxValueBytes+2 {
		value = value[:len(value)-1]
		q = strconv.Quote(value)
	}
	return q + "…"
}

// cut shortens a text without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const dots = "…"
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}
