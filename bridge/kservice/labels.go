package kservice

import (
	"knative.dev/networking/pkg/apis/networking"
	"knative.dev/serving/pkg/apis/serving"
)

// Labels of a Knative Service that belongs to Flyte.
const (
	LabelManaged = "flyte.org/app-managed" // marks what Flyte manages; only "true" counts
	LabelStopped = "flyte.org/app-stopped" // marks a stopped app; only "true" counts
	LabelProject = "flyte.org/project"     // the project that lists select by
	LabelDomain  = "flyte.org/domain"      // the domain that lists select by
	LabelAppName = "flyte.org/app-name"    // the name of the app. It is written, and never read.
	// LabelVisibility keeps an app from the outside while it is stopped.
	LabelVisibility = networking.VisibilityLabelKey
)

// Annotations of a Knative Service that belongs to Flyte.
const (
	AnnotationAppID = "flyte.org/app-id"  // the identity of the app: project/domain/name
	AnnotationOrg   = "flyte.org/app-org" // the organization; missing and empty mean "flyte"
	// AnnotationSpec is the spec the app was deployed with: standard base64 of the binary message.
	AnnotationSpec = "flyte.org/spec"
	// AnnotationSpecSHA is the SpecDigest of that annotation. Only a deploy reads it.
	AnnotationSpecSHA = "flyte.org/spec-sha"
)

// Labels that Knative puts on Revisions and pods.
const (
	// LabelService is the name of the Knative Service that a pod, or a Revision, belongs to.
	LabelService = serving.ServiceLabelKey
	// LabelServiceUID is the uid of the Knative Service that a pod, or a Revision, belongs to. Names
	// fold, uids do not.
	LabelServiceUID = serving.ServiceUIDLabelKey
	LabelRevision   = serving.RevisionLabelKey // the Revision that a pod belongs to
	// LabelGeneration is the number of that Revision: later ones have higher ones.
	LabelGeneration = serving.ConfigurationGenerationLabelKey
)

const (
	labelTrue  = "true"
	defaultOrg = "flyte"
)
