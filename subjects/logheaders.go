package subjects

// Headers of the messages of a log stream.
const (
	// HeaderLogStream holds the id of the stream, as in LogsOut and LogsStop.
	HeaderLogStream = "Flyte-Log-Stream"
	// HeaderLogSeq counts the stream's messages.
	HeaderLogSeq = "Flyte-Log-Seq"
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
	// LogEndLimit: as many lines as were asked for.
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
