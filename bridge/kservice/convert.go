package kservice

import (
	"fmt"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Convert returns the App of a Knative Service, managed by Flyte or not. rev is the Revision that
// status.latestReadyRevisionName names, nil if there is none; it ignores any other Revision. An App
// whose spec cannot be read has none.
//
// The error wraps ErrNoAppID or ErrMalformedAppID. The App shares nothing with svc and rev.
//
// An App has no JSON form if its spec has values that only the binary form can carry, for example a
// duration out of range.
func Convert(svc *Service, rev *Revision, cfg Config) (*appv1.App, error) {
	return convert(svc, currentReplicas(svc, rev), cfg)
}

// ConvertCounting is Convert with the replica count of rev, whether or not the Service names rev:
// Flyte has 0 for a Revision that is not known yet, although the one before it still runs. nil
// counts as 0, and so does a stopped app.
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
