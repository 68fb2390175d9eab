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

// Problems collects what is wrong with the fields of a request, bounded in number and length. The
// zero value is empty.
type Problems struct {
	texts []string
	more  int
}

// Add adds a problem of a field.
func (p *Problems) Add(field, wrong string) {
	if len(p.texts) == maxProblems {
		p.more++
		return
	}
	p.texts = append(p.texts, cut(field+": "+wrong, maxProblemBytes))
}

// AddValue adds a field whose value is not what is wanted.
func (p *Problems) AddValue(field, value, want string) {
	p.Add(field, Quote(value)+": want "+want)
}

func (p *Problems) count() int { return len(p.texts) + p.more }

// Texts are the problems in the order of their addition, and the number of those that are beyond
// the bound.
func (p *Problems) Texts() []string {
	if p.more == 0 {
		return p.texts
	}
	return append(p.texts[:len(p.texts):len(p.texts)], fmt.Sprintf("and %d more", p.more))
}

// checkDuration adds a duration that is invalid or negative.
func (p *Problems) checkDuration(field string, d *durationpb.Duration) {
	switch {
	case d.CheckValid() != nil:
		written := fmt.Sprintf("%d seconds and %d nanoseconds", d.GetSeconds(), d.GetNanos())
		p.AddValue(field, written, "a duration as protobuf has it")
	case d.GetSeconds() < 0 || d.GetNanos() < 0:
		p.AddValue(field, durationText(d), "no negative duration")
	}
}

// durationText is a duration in protobuf JSON, also one that is too long for Go.
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

// Quote is a value in quotes, on one line, cut after 64 bytes.
func Quote(value string) string {
	kept := value[:min(len(value), maxValueBytes)]
	for len(strconv.Quote(kept)) > maxValueBytes+2 {
		kept = kept[:len(kept)-1]
	}
	if kept == value {
		return strconv.Quote(value)
	}
	return strconv.Quote(kept) + "…"
}

// cut shortens a text without splitting a character.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const dots = "…"
	return strings.ToValidUTF8(text[:most-len(dots)], "") + dots
}
