package subjects

// Headers of the messages of a log stream.
const (
	// HeaderLogStream holds the id of the stream, as in LogsOut and LogsStop.
	HeaderLogStream = "Flyte-Log-Stream"
	// HeaderLogSeq counts the stream's messages from 1. A message that is sent
	// again, to a reader that acknowledges, keeps its number.
	HeaderLogSeq = "Flyte-Log-Seq"
	// HeaderLogReplica names the replica, its pod, that the lines of a message are of;
	// absent on a message that holds no lines.
	HeaderLogReplica = "Flyte-Log-Replica"
	// HeaderLogReplicas stands on the first message and on every one that tells
	// of a change: the replicas, sorted, joined by commas. Empty: none.
	HeaderLogReplicas = "Flyte-Log-Replicas"
	// HeaderLogNote stands on a message that is not lines of the log, and holds a
	// LogNote.
	HeaderLogNote = "Flyte-Log-Note"
	// HeaderLogDropped counts the lines that were left out before this message,
	// because its reader was too slow or, on the answer to get, because
	// they would not have fit.
	HeaderLogDropped = "Flyte-Log-Dropped"
	// HeaderLogLimit stands on the first message of a stream to another account and
	// says after what time it ends, "10m0s".
	HeaderLogLimit = "Flyte-Log-Limit"
	// HeaderLogEnd stands on the last message, which is empty, and holds a LogEnd.
	HeaderLogEnd = "Flyte-Log-End"
	// HeaderLogLines stands on the last message and counts the lines sent.
	HeaderLogLines = "Flyte-Log-Lines"
)

// The status of the last message of a log stream.
const (
	// HeaderStatus is the status header of NATS itself.
	HeaderStatus = "Status"
	// StatusNoResponders is the status that ends a waiting NATS CLI at once.
	StatusNoResponders = "503"
	// StatusNoContent ends a stream for clients that would take the status above
	// for a missing service.
	StatusNoContent = "204"
)

// Headers of a message that only asks the server for the way it would go.
const (
	// HeaderTraceOnly is a flag: the message is traced and not delivered.
	HeaderTraceOnly = "Nats-Trace-Only"
	// HeaderTraceDest holds the subject that receives the trace.
	HeaderTraceDest = "Nats-Trace-Dest"
)

// LogEnd says why a log stream ended.
type LogEnd string

// The reasons for the end of a log stream.
const (
	// LogEndEOF: everything there was has been sent.
	LogEndEOF LogEnd = "eof"
	// LogEndStopped: somebody asked for the end.
	LogEndStopped LogEnd = "stopped"
	// LogEndLimit: a limit of the service was reached; the error headers of the
	// message before say which.
	LogEndLimit LogEnd = "limit"
	// LogEndMaxDuration: as long as it may last.
	LogEndMaxDuration LogEnd = "max_duration"
	// LogEndStalled: the reader stopped acknowledging.
	LogEndStalled LogEnd = "stalled"
	// LogEndError: the source failed; the error headers say how.
	LogEndError LogEnd = "error"
	// LogEndShutdown: the service is going away.
	LogEndShutdown LogEnd = "shutdown"
)

// LogNote says what a message of a stream tells that is not lines of the log. In
// the formats for people such a message has a body that begins with LogNotePrefix.
type LogNote string

// The notes of a log stream.
const (
	// LogNoteReplicas: the replicas that are read, as in HeaderLogReplicas.
	LogNoteReplicas LogNote = "replicas"
	// LogNoteWaiting: there is nothing to read for now, and the text says why.
	LogNoteWaiting LogNote = "waiting"
	// LogNoteDropped: as many lines as HeaderLogDropped says are missing here.
	LogNoteDropped LogNote = "dropped"
	// LogNoteReplica: something happened to one replica: a container
	// started again, a replica that cannot be read.
	LogNoteReplica LogNote = "replica"
)

// LogNotePrefix begins every line of text that the service adds to the log.
const LogNotePrefix = "# appbridge: "
