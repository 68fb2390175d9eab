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

// HeaderStreamSource is on a message of a stream that has other streams as sources. The server adds
// it. Its first two words are the stream of origin and the sequence there.
const HeaderStreamSource = "Nats-Stream-Source"

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
	// HeaderReason holds a Reason, on events of an appbridge with --pod-conditions; absent where
	// there is none, and on a delete.
	HeaderReason         = "Flyte-Reason"
	HeaderReasonRevision = "Flyte-Reason-Revision" // whose pods have the reason
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

// Headers of the messages of a log stream.
const (
	HeaderLogStream = "Flyte-Log-Stream" // the id of the stream, as in LogsOut and LogsStop
	// HeaderLogSeq counts the stream's messages from 1. A message that is sent
	// again, to a reader that acknowledges, keeps its number.
	HeaderLogSeq = "Flyte-Log-Seq"
	// HeaderLogReplica names the replica, a pod, that wrote the lines of a message; absent on a
	// message without lines.
	HeaderLogReplica = "Flyte-Log-Replica"
	// HeaderLogPosition is where the lines of a message end in the log of their replica, on request. It
	// is opaque: printable ASCII without spaces and quotes, at most MaxLogPositionBytes.
	HeaderLogPosition = "Flyte-Log-Position"
	// HeaderLogReplicas holds the replicas, sorted and joined by commas, on a note when they are
	// first known and after every change. Empty: none.
	HeaderLogReplicas = "Flyte-Log-Replicas"
	HeaderLogNote     = "Flyte-Log-Note" // a LogNote, on a message without lines of the log
	// HeaderLogDropped counts the lines that were dropped before this message, because its reader
	// was too slow or, on the answer to get, because they did not fit.
	HeaderLogDropped = "Flyte-Log-Dropped"
	// HeaderLogLimit holds the maximum duration of a stream to another account, "10m0s", on its
	// first note with the replicas.
	HeaderLogLimit = "Flyte-Log-Limit"
	HeaderLogEnd   = "Flyte-Log-End"   // a LogEnd, on the last message, which is empty
	HeaderLogLines = "Flyte-Log-Lines" // counts the lines sent, on the last message
)

// MaxLogPositionBytes bounds the value of HeaderLogPosition.
const MaxLogPositionBytes = 128

// The status of the last message of a log stream.
const (
	HeaderStatus       = "Status" // the status header of NATS itself
	StatusNoResponders = "503"    // the status that ends a waiting NATS CLI at once
	// StatusNoContent ends a stream for clients that take the status above for a missing service.
	StatusNoContent = "204"
)

// Headers of a message that the server traces and does not deliver.
const (
	HeaderTraceOnly = "Nats-Trace-Only" // a flag
	HeaderTraceDest = "Nats-Trace-Dest" // the subject that receives the trace
)

// LogEnd is the reason for the end of a log stream.
type LogEnd string

// The reasons for the end of a log stream.
const (
	LogEndEOF         LogEnd = "eof"          // the stream is complete
	LogEndStopped     LogEnd = "stopped"      // a client stopped the stream
	LogEndLimit       LogEnd = "limit"        // a limit of the service, after an error message
	LogEndMaxDuration LogEnd = "max_duration" // the stream reached its maximum duration
	LogEndStalled     LogEnd = "stalled"      // the reader stopped acknowledging
	LogEndError       LogEnd = "error"        // the source failed, after an error message
	LogEndShutdown    LogEnd = "shutdown"     // the service is shutting down
)

// LogNote is the kind of a message without lines of the log. In the formats for people, its body
// begins with LogNotePrefix.
type LogNote string

// The notes of a log stream.
const (
	LogNoteReplicas LogNote = "replicas" // the replicas that are read, as in HeaderLogReplicas
	LogNoteWaiting  LogNote = "waiting"  // nothing to read for now. The text has the reason.
	LogNoteDropped  LogNote = "dropped"  // lines are missing here, as many as in HeaderLogDropped
	// LogNoteReplica: an event of one replica: a container restarted, a replica cannot be read.
	LogNoteReplica LogNote = "replica"
)

// LogNotePrefix begins every line of text that the service adds to the log.
const LogNotePrefix = "# appbridge: "

// Headers that make an event a CloudEvent: version 1.0, NATS binding, binary
// mode. NATS compares header names byte by byte, so their lower case matters.
const (
	CESpecVersion = "ce-specversion" // SpecVersion
	CEID          = "ce-id"          // the same text as Nats-Msg-Id
	CESource      = "ce-source"      // Source of the cluster
	CEType        = "ce-type"        // EventKind.Type
	CESubject     = "ce-subject"     // AppID.Key
	// CETime holds the newest time that the object itself carries, RFC 3339 in UTC.
	CETime            = "ce-time"
	CEDataContentType = "ce-datacontenttype" // ContentTypeJSON or ContentTypeProtobuf
	CEDataSchema      = "ce-dataschema"      // DataSchema; absent on messages of older versions
)

// The version of CloudEvents, and the encodings of a payload.
const (
	SpecVersion         = "1.0"                  // the version of CloudEvents
	ContentTypeJSON     = "application/json"     // a payload in the JSON form of protobuf
	ContentTypeProtobuf = "application/protobuf" // a payload in binary protobuf
)

// DataSchema names the definition of every payload, in either encoding: the messages of the protobuf
// package appbridge.v1, WatchResponse in an event and App in a bucket entry. A change that readers
// cannot accept, and it alone, makes another name. It is an identifier; nothing is served under it.
// The JSON Schema in docs/schema has it as its id.
const DataSchema = "https://github.com/appbridge/appbridge/schema/appbridge.v1"

// Source is the CloudEvents source of all events of a cluster, "/appbridge/<cluster-name>". Bytes
// of the name that a URI does not take unreserved are percent-encoded, so the result is a legal
// URI-reference for every name, and two names never share one.
func Source(clusterName string) string {
	return "/appbridge/" + escape(clusterName, '%', isUnreserved)
}

// isUnreserved reports whether c is one of the unreserved characters of RFC 3986.
func isUnreserved(c byte) bool { return isWord(c) || c == '.' || c == '~' }
