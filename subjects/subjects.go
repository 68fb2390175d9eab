package subjects

import (
	"fmt"
	"slices"
	"strings"
)

// Subjects builds and parses every subject below one prefix. Make one with New. It is an immutable
// value, comparable, and safe for use by many goroutines.
//
// The errors of its builders wrap ErrEmptyPart, ErrTooLong, or ErrInvalidName for an unknown kind
// or operation. Its parsers accept what the builder of the same name writes for this prefix and
// nothing else; their errors wrap ErrMalformed, or ErrInvalidName.
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

// parse splits what follows "<prefix>.<branch>." in subject into n tokens.
func (s Subjects) parse(what, branch, subject string, n int) ([]string, error) {
	rest, err := s.cut(subject, branch)
	var parts []string
	if err == nil {
		parts, err = splitTokens(rest, n)
	}
	if err != nil {
		return nil, fmt.Errorf("parse %s %s: %w", what, quote(subject), err)
	}
	return parts, nil
}

// operation is a request for one app, APIOp or LogOp.
type operation interface {
	~string
	validate() error
}

// opSubject is "<branch><op>.<project>.<domain>.<app>".
func opSubject[O operation](what, branch string, op O, id AppID) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	key, err := id.Key()
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return branch + string(op) + "." + key, nil
}

// opFilter is "<branch><op>.*.*.*".
func opFilter[O operation](what, branch string, op O) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return branch + string(op) + ".*.*.*", nil
}

// parseOp is the inverse of opSubject.
func parseOp[O operation](s Subjects, what, branch, subject string) (O, AppID, error) {
	rest, err := s.cut(subject, branch)
	op, key, ok := strings.Cut(rest, ".")
	if err == nil && !ok {
		err = fmt.Errorf("%w: no app id", ErrMalformed)
	}
	var id AppID
	if err == nil {
		id, err = ParseKey(key)
	}
	if err == nil {
		err = O(op).validate()
	}
	if err != nil {
		return "", AppID{}, fmt.Errorf("parse %s %s: %w", what, quote(subject), err)
	}
	return O(op), id, nil
}

// oneOf returns an error that wraps ErrInvalidName unless value is one of those allowed.
func oneOf[T ~string](what string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("%w: %s %s", ErrInvalidName, what, quote(string(value)))
}
