package subjects

import (
	"fmt"
	"strings"
)

// Subjects builds and parses every subject below one prefix. Make one with New:
// the zero value has no prefix and builds nothing useful. It is an immutable
// value, comparable, and safe for use by many goroutines.
//
// Its parsers accept what the builder of the same name writes for this prefix and nothing else.
// Their errors wrap ErrMalformed, or ErrInvalidName for an unknown kind or operation.
type Subjects struct {
	prefix string
}

// New returns the subjects below prefix, DefaultPrefix as a rule. The error is
// that of ValidatePrefix.
func New(prefix string) (Subjects, error) {
	if err := ValidatePrefix(prefix); err != nil {
		return Subjects{}, err
	}
	return Subjects{prefix: prefix}, nil
}

// Prefix is the prefix as given to New.
func (s Subjects) Prefix() string { return s.prefix }

// cut returns what follows "<prefix>.<branch>." in subject.
func (s Subjects) cut(subject, branch string) (string, error) {
	rest, ok := strings.CutPrefix(subject, s.prefix+branch)
	if !ok {
		return "", fmt.Errorf("%w: does not begin with %q", ErrMalformed, s.prefix+branch)
	}
	return rest, nil
}
