package subjects

// Headers of the messages of a log stream.
const (
	HeaderLogStream = "Flyte-Log-Stream" // the id of the stream, as in LogsOut and LogsStop
	// HeaderLogSeq counts the stream's messages from 1. A message that is sent
	// again, to a reader that acknowledges, keeps its number.
	HeaderLogSeq = "Flyte-Log-Seq"
	// HeaderLogReplica names the replica, a pod, that wrote the lines of a message; absent on a
	// message without lines.
	HeaderLogReplica = "Flyte-Log-Replica"
	// HeaderLogReplicas holds the replicas, sorted and joined by commas, on the first message and
	// after every change. Empty: none.
	HeaderLogReplicas = "Flyte-Log-Replicas"
	HeaderLogNote     = "Flyte-Log-Note" // a LogNote, on a message without lines of the log
	// HeaderLogDropped counts the lines that were dropped before this message, because its reader
	// was too slow or, on the answer to get, because they did not fit.
	HeaderLogDropped = "Flyte-Log-Dropped"
	// HeaderLogLimit holds the maximum duration of a stream to another account, "10m0s", on its
	// first message.
	HeaderLogLimit = "Flyte-Log-Limit"
	HeaderLogEnd   = "Flyte-Log-End"   // a LogEnd, on the last message, which is empty
	HeaderLogLines = "Flyte-Log-Lines" // counts the lines sent, on the last message
)

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
