package kservice

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/appbridge/appbridge/subjects"
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

// checkDuration adds a duration that is invalid.
func (p *Problems) checkDuration(field string, d *durationpb.Duration) {
	if d.CheckValid() != nil {
		written := fmt.Sprintf("%d seconds and %d nanoseconds", d.GetSeconds(), d.GetNanos())
		p.AddValue(field, written, "a duration as protobuf has it")
	}
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

// checkID checks that an id is valid in labels and in the name of a Knative Service, a DNS label
// that begins with a letter.
func checkID(id subjects.AppID, found *Problems) {
	const field = "app.metadata.id."
	at := 0
	for _, part := range []struct{ field, value string }{
		{field + "name", id.Name}, {field + "project", id.Project}, {field + "domain", id.Domain},
	} {
		wrong := wrongLabel(part.value)
		if wrong == "" {
			wrong = wrongInName(part.value, at, id)
		}
		if wrong != "" {
			found.Add(part.field, Quote(part.value)+": "+wrong)
		}
		at += len(part.value) + len("-")
	}
}

// wrongLabel is the reason why a part of an id is invalid as the value of a label.
func wrongLabel(value string) string {
	if value == "" {
		return "must not be empty"
	}
	if len(value) > maxNameBytes {
		return fmt.Sprintf("is %d bytes, want at most %d", len(value), maxNameBytes)
	}
	for _, r := range value {
		if !isAlphanumeric(r) && !strings.ContainsRune("-_.", r) {
			return fmt.Sprintf("must not hold %q: want letters, digits and any of - _ .", r)
		}
	}
	if first, last := rune(value[0]), rune(value[len(value)-1]); !isAlphanumeric(first) || !isAlphanumeric(last) {
		return "must begin and end with a letter or a digit"
	}
	return ""
}

// wrongInName is the reason why a part of an id, which begins at byte start of the name of the
// Knative Service, makes that name invalid. The cut of a long name may remove the reason.
func wrongInName(value string, start int, id subjects.AppID) string {
	kept := value
	if len(id.Name)+len(id.Project)+len(id.Domain)+len("--") > maxNameBytes {
		kept = value[:min(len(value), max(0, cutNameBytes-start))]
	}
	if at := strings.IndexAny(kept, "_."); at >= 0 {
		return fmt.Sprintf("must not hold %q: Knative would refuse the name %s", kept[at], Quote(Name(id)))
	}
	if start == 0 && !isLetter(rune(value[0])) {
		return fmt.Sprintf("must begin with a letter: Knative would refuse the name %s", Quote(Name(id)))
	}
	return ""
}

func isLetter(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

func isAlphanumeric(r rune) bool {
	return isLetter(r) || '0' <= r && r <= '9'
}
