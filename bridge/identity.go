package bridge

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
)

// Reasons why a managed Knative Service is not published, as metric labels.
const (
	reasonNoAppID   = "no_app_id"  // annotation flyte.org/app-id is missing
	reasonMalformed = "bad_app_id" // fewer than three parts
	reasonEmptyPart = "empty_part" // an empty project, domain or name
	reasonTooLong   = "app_id_too_long"
	reasonConflict  = "conflict"  // another object is this app
	reasonTooLarge  = "too_large" // does not fit into a message
	reasonConvert   = "convert"   // anything else that conversion or encoding refuses
)

// identity is the publishable app id of an object.
func identity(svc *kservice.Service) (subjects.AppID, error) {
	id, err := kservice.ID(svc)
	if err != nil {
		return subjects.AppID{}, err
	}
	if err := id.Validate(); err != nil {
		return subjects.AppID{}, fmt.Errorf("annotation %s: %w", kservice.AnnotationAppID, err)
	}
	return id, nil
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, kservice.ErrNoAppID):
		return reasonNoAppID
	case errors.Is(err, kservice.ErrMalformedAppID):
		return reasonMalformed
	case errors.Is(err, subjects.ErrEmptyPart):
		return reasonEmptyPart
	case errors.Is(err, subjects.ErrTooLong):
		return reasonTooLong
	case errors.Is(err, errTooLarge):
		return reasonTooLarge
	default:
		return reasonConvert
	}
}
