package audit

import (
	"context"
	"errors"
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
	Repair(ctx context.Context, findings []Difference) error
}

// ErrInactive is the error of a part that cannot be audited at present.
var ErrInactive = errors.New("there is nothing to audit at present")

// Looked is the result of a look.
type Looked struct {
	Findings []Difference
	// Changing are the subjects that could not be judged: a change of them is in progress.
	Changing map[string]bool
}
