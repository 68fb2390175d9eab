package subjects

// Headers of the messages of a log stream.
const (
	// HeaderLogStream holds the id of the stream, as in LogsOut and LogsStop.
	HeaderLogStream = "Flyte-Log-Stream"
	// HeaderLogSeq counts the stream's messages from 1. A message that is sent
	// again, to a reader that acknowledges, keeps its number.
	HeaderLogSeq = "Flyte-Log-Seq"
	// HeaderLogReplica names the replica, a pod, that wrote the lines of a message; absent on a
	// message without lines.
	HeaderLogReplica = "Flyte-Log-Replica"
	// HeaderLogReplicas holds the replicas, sorted and joined by commas, on the first message and
	// after every change. Empty: none.
	HeaderLogReplicas = "Flyte-Log-Replicas"
	// HeaderLogNote holds a LogNote, on a message without lines of the log.
	HeaderLogNote = "Flyte-Log-Note"
	// HeaderLogDropped counts the lines that were dropped before this message, because its reader
	// was too slow or, on the answer to get, because they did not fit.
	HeaderLogDropped = "Flyte-Log-Dropped"
	// HeaderLogLimit holds the maximum duration of a stream to another account, "10m0s", on its
	// first message.
	HeaderLogLimit = "Flyte-Log-Limit"
	// HeaderLogEnd holds a LogEnd, on the last message, which is empty.
	HeaderLogEnd = "Flyte-Log-End"
	// HeaderLogLines counts the lines sent, on the last message.
	HeaderLogLines = "Flyte-Log-Lines"
)

// The status of the last message of a log stream.
const (
	// HeaderStatus is the status header of NATS itself.
	HeaderStatus = "Status"
	// StatusNoResponders is the status that ends a waiting NATS CLI at once.
	StatusNoResponders = "503"
	// StatusNoContent ends a stream for clients that take the status above for a missing service.
	StatusNoContent = "204"
)

// Headers of a message that the server traces and does not deliver.
const (
	// HeaderTraceOnly is a flag.
	HeaderTraceOnly = "Nats-Trace-Only"
	// HeaderTraceDest holds the subject that receives the trace.
	HeaderTraceDest = "Nats-Trace-Dest"
)

// LogEnd is the reason for the end of a log stream.
type LogEnd string

// The reasons for the end of a log stream.
const (
	// LogEndEOF: the stream is complete.
	LogEndEOF LogEnd = "eof"
	// LogEndStopped: a client stopped the stream.
	LogEndStopped LogEnd = "stopped"
	// LogEndLimit: a limit of the service was reached. The message before has an error that names
	// it.
	LogEndLimit LogEnd = "limit"
	// LogEndMaxDuration: the stream reached its maximum duration.
	LogEndMaxDuration LogEnd = "max_duration"
	// LogEndStalled: the reader stopped acknowledging.
	LogEndStalled LogEnd = "stalled"
	// LogEndError: the source failed. The message before has the error.
	LogEndError LogEnd = "error"
	// LogEndShutdown: the service is shutting down.
	LogEndShutdown LogEnd = "shutdown"
)

// LogNote is the kind of a message without lines of the log. In the formats for people, its body
// begins with LogNotePrefix.
type LogNote string

// The notes of a log stream.
const (
	// LogNoteReplicas: the replicas that are read, as in HeaderLogReplicas.
	LogNoteReplicas LogNote = "replicas"
	// LogNoteWaiting: there is nothing to read for now. The text has the reason.
	LogNoteWaiting LogNote = "waiting"
	// LogNoteDropped: lines are missing here, as many as in HeaderLogDropped.
	LogNoteDropped LogNote = "dropped"
	// LogNoteReplica: an event of one replica: a container restarted, a replica cannot be read.
	LogNoteReplica LogNote = "replica"
)

// LogNotePrefix begins every line of text that the service adds to the log.
const LogNotePrefix = "# appbridge: "
