package kservice

// Labels of a Knative Service that belongs to Flyte.
const (
	LabelManaged = "flyte.org/app-managed" // marks what Flyte manages. Only the value "true" counts.
	LabelStopped = "flyte.org/app-stopped" // marks a stopped app. Only the value "true" counts.
	LabelProject = "flyte.org/project"     // the project that lists select by
	LabelDomain  = "flyte.org/domain"      // the domain that lists select by
	LabelAppName = "flyte.org/app-name"    // the name of the app. It is written, and never read.
	// LabelVisibility keeps an app from the outside while it is stopped.
	LabelVisibility = "networking.knative.dev/visibility"
)

// Annotations of a Knative Service that belongs to Flyte.
const (
	// AnnotationAppID is the identity of the app: project/domain/name. Neither
	// the labels nor the name of the object take part in it.
	AnnotationAppID = "flyte.org/app-id"
	AnnotationOrg   = "flyte.org/app-org" // the organization; missing and empty mean "flyte"
	// AnnotationSpec is the spec the app was deployed with: standard base64 of the binary message.
	AnnotationSpec = "flyte.org/spec"
	// AnnotationSpecSHA is the SpecDigest of the annotation beside it. Only
	// deploying reads it, to see that nothing has changed.
	AnnotationSpecSHA = "flyte.org/spec-sha"
)

// Labels that Knative puts on pods.
const (
	// LabelService is the name of the Knative Service that a pod, or a Revision, belongs to.
	LabelService = "serving.knative.dev/service"
	// LabelServiceUID is the uid of the Knative Service that a pod belongs to. Names fold, uids do
	// not.
	LabelServiceUID = "serving.knative.dev/serviceUID"
	LabelRevision   = "serving.knative.dev/revision" // the name of the Revision that a pod belongs to
)

const (
	labelTrue  = "true"
	defaultOrg = "flyte"
)
