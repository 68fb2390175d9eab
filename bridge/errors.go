package bridge

import (
	"errors"
	"fmt"
)

// errTooLarge says that an event does not fit even without what may be left out.
var errTooLarge = errors.New("event is larger than the server's maximum payload")

// ConfigError is something that only an operator can mend: a stream of
// another shape, another cluster's, another history.
type ConfigError struct {
	Field, Value    string
	Problem, Repair string
	Fatal           bool // ends the process also after it was live: nothing may be published past this
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("%s %q: %s; %s", e.Field, e.Value, e.Problem, e.Repair)
}
