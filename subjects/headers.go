package subjects

// Headers of a publish to JetStream, read by the server. A sequence is a decimal number.
const (
	// HeaderMsgID holds a MessageID. The server drops a second message with the
	// same value inside its duplicate window.
	HeaderMsgID          = "Nats-Msg-Id"
	HeaderExpectedStream = "Nats-Expected-Stream" // names the stream that must store the message
	// HeaderExpectedLastSequence holds the sequence that the stream's last
	// message must have; else the server refuses. Every append to the event
	// stream and every write of the bucket carries it.
	HeaderExpectedLastSequence = "Nats-Expected-Last-Sequence"
	// HeaderExpectedLastSubjectSequence holds the sequence that the last message
	// on the subject must have, 0 for none; else the server refuses.
	HeaderExpectedLastSubjectSequence = "Nats-Expected-Last-Subject-Sequence"
	// HeaderExpectedLastSubjectSequenceSubject widens the check above to the
	// subjects that match this filter. Alone it is an error.
	HeaderExpectedLastSubjectSequenceSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
)

// The header of a bucket entry that is not a value. An entry without it is one.
const (
	HeaderKVOperation = "KV-Operation" // marks an entry as a deletion: KVDelete or KVPurge
	KVDelete          = "DEL"          // leaves a marker on top of the key's history
	KVPurge           = "PURGE"        // leaves a marker in place of the key's history
)

// Headers of an event, repeated on the bucket entry or marker that it led to.
// Flags are "true" or absent, numbers decimal.
const (
	HeaderUID = "Flyte-Uid" // the uid of the Knative Service
	// HeaderResourceVersion holds the version of the Knative Service; on a
	// delete that of the previous event.
	HeaderResourceVersion = "Flyte-Resource-Version"
	// HeaderGeneration holds the generation of the Knative Service; on a delete
	// that of the previous event.
	HeaderGeneration = "Flyte-Generation"
	// HeaderNamespace holds the namespace of the Knative Service. A stopped App does not carry it.
	HeaderNamespace = "Flyte-Namespace"
	// HeaderAppStatus holds one word for the App's state: STOPPED for a stopped app,
	// else what the condition of type Ready maps to (ACTIVE, PENDING or FAILED);
	// absent without that condition, and on a delete.
	HeaderAppStatus = "Flyte-Status"
	// HeaderPreviousAppStatus holds the HeaderAppStatus of the app's previous event;
	// absent on a create, and where the previous event has none.
	HeaderPreviousAppStatus = "Flyte-Previous-Status"
	// HeaderRevision names the Revision that gave current_replicas; absent without one.
	HeaderRevision = "Flyte-Revision"
	// HeaderRevisionResourceVersion holds the version of that Revision; absent without one.
	HeaderRevisionResourceVersion = "Flyte-Revision-Resource-Version"
	// HeaderDeletedResourceVersion holds the version of the deletion; only on a
	// delete that was observed.
	HeaderDeletedResourceVersion = "Flyte-Deleted-Resource-Version"
	// HeaderTruncated lists the fields that were dropped to fit the server's limit, joined by
	// commas in the order in which they were dropped: TruncatedOldApp, TruncatedSpec,
	// TruncatedStatus.
	HeaderTruncated = "Flyte-Truncated"
	// HeaderPreviousSequence holds the stream sequence of this app's previous
	// event; absent on the first.
	HeaderPreviousSequence = "Flyte-Previous-Sequence"
	// HeaderMergedUpdates counts the intermediate updates that this one stands
	// for; absent when there are none.
	HeaderMergedUpdates = "Flyte-Merged-Updates"
	HeaderSynthesized   = "Flyte-Synthesized" // a flag: a resync found the change
	// HeaderFinalStateUnknown is a flag: the last state before this delete was not observed.
	HeaderFinalStateUnknown = "Flyte-Final-State-Unknown"
	// HeaderEventSequence holds the stream sequence of the event that a bucket
	// entry or marker reflects; never on the event itself.
	HeaderEventSequence = "Flyte-Event-Sequence"
)

// Values of headers.
const (
	FlagTrue        = "true"    // the value of a flag that is set
	TruncatedOldApp = "old_app" // in HeaderTruncated: an update without old_app
	TruncatedSpec   = "spec"    // in HeaderTruncated: an App without spec
	// TruncatedStatus in HeaderTruncated: a delete whose App is its id alone,
	// since a delete has to get through.
	TruncatedStatus = "status"
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
	// HeaderContentType holds ContentTypeJSON or ContentTypeProtobuf: the form of
	// a request, which is also that of its answer. Absent: JSON.
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
