package app

import (
	"errors"
	"fmt"
)

// ErrTooLarge reports that an event does not fit even without the fields that may be truncated.
var ErrTooLarge = errors.New("event is larger than the server's maximum payload")

// errNoForm reports an App that no content type can carry.
var errNoForm = errors.New("the App cannot be encoded")

// ConfigError is an error that only an operator can repair, as a stream of another cluster.
type ConfigError struct {
	Field, Value    string
	Problem, Repair string
	Fatal           bool // ends the process also after it was live: nothing may be published past this
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s %q: %s; %s", e.Field, e.Value, e.Problem, e.Repair)
}
