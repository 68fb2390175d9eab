package kservice

import (
	"fmt"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Convert makes the App of a Knative Service. rev is the Revision that
// status.latestReadyRevisionName names, nil when there is none; any other
// Revision counts as none. Whether Flyte manages the Service is not asked: see
// Managed. A spec that cannot be read is left out without an error.
//
// The error wraps ErrNoAppID or ErrMalformedAppID; then there is no App. Neither
// svc nor rev is changed, and the App shares nothing with them.
//
// An App may have no JSON form, when its spec holds values that only the binary
// form can carry (a number that is not one, a duration out of range).
func Convert(svc *Service, rev *Revision, cfg Config) (*appv1.App, error) {
	return convert(svc, currentReplicas(svc, rev), cfg)
}

// ConvertCounting makes the App of a Knative Service as Convert does, with the count of rev whether
// or not the Service names it: Flyte shows 0 for a Revision that is not known yet, although the one
// before it still runs. rev nil counts 0. Of a stopped app nothing is counted.
func ConvertCounting(svc *Service, rev *Revision, cfg Config) (*appv1.App, error) {
	return convert(svc, count(rev), cfg)
}

func convert(svc *Service, replicas uint32, cfg Config) (*appv1.App, error) {
	id, err := ID(svc)
	if err != nil {
		return nil, fmt.Errorf("convert knative service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return &appv1.App{
		Metadata: &appv1.Meta{Id: identifier(id, Org(svc))},
		Spec:     spec(svc),
		Status:   status(id, svc, replicas, cfg),
	}, nil
}
