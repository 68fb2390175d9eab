package kservice

// Labels of a Knative Service that belongs to Flyte.
const (
	// LabelManaged marks what Flyte manages. Only the value "true" counts.
	LabelManaged = "flyte.org/app-managed"
	// LabelStopped marks a stopped app. Only the value "true" counts.
	LabelStopped = "flyte.org/app-stopped"
	// LabelProject is the project that lists select by.
	LabelProject = "flyte.org/project"
	// LabelDomain is the domain that lists select by.
	LabelDomain = "flyte.org/domain"
	// LabelAppName is the name of the app. It is written, and never read.
	LabelAppName = "flyte.org/app-name"
	// LabelVisibility keeps an app from the outside while it is stopped.
	LabelVisibility = "networking.knative.dev/visibility"
)

// Annotations of a Knative Service that belongs to Flyte.
const (
	// AnnotationAppID is the identity of the app: project/domain/name. Neither
	// the labels nor the name of the object take part in it.
	AnnotationAppID = "flyte.org/app-id"
	// AnnotationOrg is the organization; missing and empty mean "flyte".
	AnnotationOrg = "flyte.org/app-org"
	// AnnotationSpec is the spec the app was deployed with: standard base64 of
	// the binary message.
	AnnotationSpec = "flyte.org/spec"
	// AnnotationSpecSHA is the SpecDigest of the annotation beside it. Only
	// deploying reads it, to see that nothing has changed.
	AnnotationSpecSHA = "flyte.org/spec-sha"
)

// Labels that Knative puts on pods.
const (
	// LabelService is the name of the Knative Service that a pod, or a
	// Revision, belongs to.
	LabelService = "serving.knative.dev/service"
	// LabelServiceUID is the uid of the Knative Service that a pod belongs to. Names fold, uids do
	// not.
	LabelServiceUID = "serving.knative.dev/serviceUID"
	// LabelRevision is the name of the Revision that a pod belongs to.
	LabelRevision = "serving.knative.dev/revision"
)

const (
	labelTrue  = "true"
	defaultOrg = "flyte"
)
