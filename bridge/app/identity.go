package app

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

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
