package subjects

// Headers of a publish to JetStream, read by the server. A sequence is a decimal number.
const (
	// HeaderMsgID holds a MessageID. The server drops a second message with it for a while.
	HeaderMsgID          = "Nats-Msg-Id"
	HeaderExpectedStream = "Nats-Expected-Stream" // names the stream that must store the message
	// HeaderExpectedLastSequence holds the sequence that the stream's last message must have, else
	// the server refuses. Every append to the event stream and every write of the bucket has it.
	HeaderExpectedLastSequence = "Nats-Expected-Last-Sequence"
	// HeaderExpectedLastSubjectSequence is the same for the subject's last message, 0 for none.
	HeaderExpectedLastSubjectSequence = "Nats-Expected-Last-Subject-Sequence"
	// HeaderExpectedLastSubjectSequenceSubject is a filter for the subjects of that check.
	HeaderExpectedLastSubjectSequenceSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// HeaderMessageSize holds the size of a body in bytes. The server adds it to a message that it
// delivers without the body.
const HeaderMessageSize = "Nats-Msg-Size"

// The header of a bucket entry that is not a value. An entry without it is one.
const (
	HeaderKVOperation = "KV-Operation" // marks an entry as a deletion: KVDelete or KVPurge
	KVDelete          = "DEL"          // leaves a marker on top of the key's history
	KVPurge           = "PURGE"        // leaves a marker in place of the key's history
)

// Headers of an event, repeated on the bucket entry or marker that it led to.
// Flags are "true" or absent, numbers decimal.
const (
	HeaderUID             = "Flyte-Uid"              // the uid of the Knative Service
	HeaderResourceVersion = "Flyte-Resource-Version" // its version; on a delete, the previous one
	HeaderGeneration      = "Flyte-Generation"       // its generation, likewise
	HeaderNamespace       = "Flyte-Namespace"        // its namespace, which a stopped App lacks
	// HeaderAppStatus holds one word for the App's state: STOPPED for a stopped app, else what the
	// condition of type Ready maps to; absent without that condition, and on a delete.
	HeaderAppStatus               = "Flyte-Status"
	HeaderPreviousAppStatus       = "Flyte-Previous-Status"           // of the previous event
	HeaderRevision                = "Flyte-Revision"                  // that gave current_replicas
	HeaderRevisionResourceVersion = "Flyte-Revision-Resource-Version" // its version
	HeaderDeletedResourceVersion  = "Flyte-Deleted-Resource-Version"  // of an observed deletion
	// HeaderTruncated lists the fields that were dropped to fit the server's limit, in that order
	// and joined by commas: TruncatedOldApp, TruncatedSpec, TruncatedStatus.
	HeaderTruncated         = "Flyte-Truncated"
	HeaderPreviousSequence  = "Flyte-Previous-Sequence"   // of this app's previous event
	HeaderMergedUpdates     = "Flyte-Merged-Updates"      // how many this one stands for
	HeaderSynthesized       = "Flyte-Synthesized"         // a flag: a resync found the change
	HeaderFinalStateUnknown = "Flyte-Final-State-Unknown" // a flag: the last state was not seen
	HeaderEventSequence     = "Flyte-Event-Sequence"      // of the event, on a bucket entry
)

// Values of headers.
const (
	FlagTrue        = "true"    // the value of a flag that is set
	TruncatedOldApp = "old_app" // in HeaderTruncated: an update without old_app
	TruncatedSpec   = "spec"    // in HeaderTruncated: an App without spec
	TruncatedStatus = "status"  // in HeaderTruncated: a delete whose App is its id alone
)

// Headers of a notice of loss: the first and the last sequence of the event
// stream that were acknowledged and are lost, as FormatNotice writes them.
const (
	HeaderLostFrom = "Flyte-Lost-From"
	HeaderLostTo   = "Flyte-Lost-To"
)

// Headers of a refused request, those of every NATS micro service.
const (
	HeaderServiceError     = "Nats-Service-Error"      // the reason as text
	HeaderServiceErrorCode = "Nats-Service-Error-Code" // the reason as a Code
)

// Headers of requests for app operations and of their answers.
const (
	// HeaderContentType holds the form of a request and its answer, by default ContentTypeJSON.
	HeaderContentType = "Content-Type"
	// HeaderOutcome holds an Outcome, on the answer of an operation that changes an app.
	HeaderOutcome = "Flyte-Outcome"
)

// Outcome is the result of an operation that changes an app.
type Outcome string

// The outcomes. After OutcomeUnchanged and OutcomeMissing no event follows.
const (
	OutcomeCreated   Outcome = "created"   // deploy created the app
	OutcomeUpdated   Outcome = "updated"   // deploy changed or restarted the app
	OutcomeUnchanged Outcome = "unchanged" // the app had the desired state, nothing was written
	OutcomeStopped   Outcome = "stopped"   // the app was stopped
	OutcomeDeleted   Outcome = "deleted"   // the app, or the replica, was deleted
	OutcomeMissing   Outcome = "missing"   // the app or replica did not exist
)
