package audit

import (
	"cmp"
	"context"
	"errors"
	"strings"
)

// Part is one thing that is audited. The Auditor calls its methods one at a time.
type Part interface {
	// Active reports whether there is anything to audit now. Otherwise the findings do not count.
	Active() bool
	// Screen reads everything and returns the suspects. With an error it has not read everything.
	Screen(ctx context.Context, pace *Pace) (suspects []string, err error)
	// Look compares the subjects in full. It returns ErrInactive if the part became inactive.
	Look(ctx context.Context, subjects []string) (Looked, error)
	// Repair starts the repair of findings. A later look finds its effect.
	Repair(ctx context.Context, findings []Finding) error
}

// ErrInactive is the error of a part that cannot be audited at present.
var ErrInactive = errors.New("there is nothing to audit at present")

// Looked is the result of a look.
type Looked struct {
	Findings []Finding
	// Unsettled are the subjects that could not be judged: a change of them is in progress.
	Unsettled map[string]bool
}

// Finding is one thing that is wrong with a subject.
type Finding struct {
	Subject string
	// Field is the subject's field in the log: app, key or object.
	Field      string
	Name       string // of the subject, as logged
	Kind, Side string // labels of the metrics
	Detail     string
	// Same is the text in which two looks have to agree. Empty: Kind and Detail.
	Same string
	// Leave is true for a finding that is reported, not repaired, and does not count for readiness.
	Leave bool
}

// of returns the findings of each subject.
func (l Looked) of() map[string][]Finding {
	found := map[string][]Finding{}
	for _, d := range l.Findings {
		found[d.Subject] = append(found[d.Subject], d)
	}
	return found
}

// same is the text in which two looks at one subject have to agree.
func same(findings []Finding) string {
	var b strings.Builder
	for _, d := range findings {
		b.WriteString(d.Kind + " " + cmp.Or(d.Same, d.Detail) + "\n")
	}
	return b.String()
}
