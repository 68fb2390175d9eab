package kservice

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// Why a Knative Service has no app.
var (
	// ErrNoAppID is returned for a Service without the app id annotation.
	ErrNoAppID = errors.New("no " + AnnotationAppID + " annotation")
	// ErrMalformedAppID is returned for an app id that is not project/domain/name.
	ErrMalformedAppID = errors.New("malformed " + AnnotationAppID + " annotation")
)

// ID is the id of the app, from the annotation alone. It is not checked: parts may be empty, and
// the name may contain slashes. Use AppID.Validate before building a subject. The error wraps
// ErrNoAppID or ErrMalformedAppID.
func ID(svc *Service) (subjects.AppID, error) {
	written, ok := svc.Annotations[AnnotationAppID]
	if !ok {
		return subjects.AppID{}, ErrNoAppID
	}
	parts := strings.SplitN(written, "/", 3)
	if len(parts) < 3 {
		return subjects.AppID{}, fmt.Errorf("%w: %q is not project/domain/name", ErrMalformedAppID, written)
	}
	return subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}, nil
}

// Org is the organization of the app, "flyte" by default.
func Org(svc *Service) string {
	return cmp.Or(svc.Annotations[AnnotationOrg], defaultOrg)
}

// Stopped reports whether the app is stopped.
func Stopped(svc *Service) bool {
	return svc.Labels[LabelStopped] == labelTrue
}

func identifier(id subjects.AppID, org string) *appv1.Identifier {
	return &appv1.Identifier{Org: org, Project: id.Project, Domain: id.Domain, Name: id.Name}
}
