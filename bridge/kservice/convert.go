package kservice

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
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
	if rev != nil && (rev.Name != svc.Status.LatestReadyRevisionName || rev.Namespace != svc.Namespace) {
		rev = nil
	}
	return ConvertCounting(svc, rev, cfg)
}

// ConvertCounting is Convert with the replica count of rev, whether or not the Service names rev:
// Flyte has 0 for a Revision that is not known yet, although the one before it still runs. nil
// counts as 0, and so does a stopped app.
func ConvertCounting(svc *Service, rev *Revision, cfg Config) (*appv1.App, error) {
	id, err := ID(svc)
	if err != nil {
		return nil, fmt.Errorf("convert knative service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return &appv1.App{
		Metadata: &appv1.Meta{Id: identifier(id, Org(svc))},
		Spec:     spec(svc),
		Status:   status(id, svc, count(rev), cfg),
	}, nil
}

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

// maxSpecDepth is how deep a spec may nest: readers of an event find it three messages further down, in
// an App, its event and a WatchResponse.
const maxSpecDepth = protowire.DefaultRecursionLimit - 3

// spec is the deployed spec of the app, from its annotation. It is nil if it is missing or cannot
// be read, so that readers get the rest of the app. Unknown fields stay in it.
func spec(svc *Service) *appv1.Spec {
	written, ok := svc.Annotations[AnnotationSpec]
	if !ok {
		return nil
	}
	// Skips line ends and accepts any trailing bits, as Flyte does.
	wire, err := base64.StdEncoding.DecodeString(written)
	if err != nil {
		return nil
	}
	var out appv1.Spec
	if err := (proto.UnmarshalOptions{RecursionLimit: maxSpecDepth}).Unmarshal(wire, &out); err != nil {
		return nil
	}
	if Stopped(svc) {
		out.DesiredState = appv1.Spec_DESIRED_STATE_STOPPED
	}
	return &out
}
