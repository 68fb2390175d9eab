package app

import (
	"errors"
	"fmt"
	"strings"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// ErrTooLarge reports that an event does not fit even without the fields that may be truncated.
var ErrTooLarge = errors.New("event is larger than the server's maximum payload")

// TooLargeError is ErrTooLarge of one event. Sizes are those of messages with headers, in bytes.
type TooLargeError struct {
	Size, Limit int
	Smallest    int      // of an event of this app with nothing that may be truncated
	Without     []string // the fields that were truncated
}

func (e *TooLargeError) Error() string {
	text := fmt.Sprintf("%v: %d of %d bytes", ErrTooLarge, e.Size, e.Limit)
	if len(e.Without) > 0 {
		text += ", without " + strings.Join(e.Without, " and ")
	}
	return text
}

func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

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

// Reasons why a managed Knative Service is not published, as metric labels.
const (
	ReasonNoAppID   = "no_app_id"  // annotation flyte.org/app-id is missing
	ReasonMalformed = "bad_app_id" // fewer than three parts
	ReasonEmptyPart = "empty_part" // an empty project, domain or name
	ReasonTooLong   = "app_id_too_long"
	ReasonConflict  = "conflict"  // another object is this app
	ReasonTooLarge  = "too_large" // does not fit into a message
	ReasonConvert   = "convert"   // anything else that conversion or encoding refuses
)

// Identity is the publishable app id of an object.
func Identity(svc *kservice.Service) (subjects.AppID, error) {
	id, err := kservice.ID(svc)
	if err != nil {
		return subjects.AppID{}, err
	}
	if err := id.Validate(); err != nil {
		return subjects.AppID{}, fmt.Errorf("annotation %s: %w", kservice.AnnotationAppID, err)
	}
	return id, nil
}

// Reason returns the metric label of an error.
func Reason(err error) string {
	switch {
	case errors.Is(err, kservice.ErrNoAppID):
		return ReasonNoAppID
	case errors.Is(err, kservice.ErrMalformedAppID):
		return ReasonMalformed
	case errors.Is(err, subjects.ErrEmptyPart):
		return ReasonEmptyPart
	case errors.Is(err, subjects.ErrTooLong):
		return ReasonTooLong
	case errors.Is(err, ErrTooLarge):
		return ReasonTooLarge
	default:
		return ReasonConvert
	}
}
