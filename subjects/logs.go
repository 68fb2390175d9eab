package subjects

import "fmt"

// LogOp is a request of the log service.
type LogOp string

// The requests of the log service.
const (
	LogGet  LogOp = "get"  // answers with the last lines in one message
	LogTail LogOp = "tail" // streams to the reply subject of the request
	// LogOpen answers with the subject of a stream that begins when that has a subscriber.
	LogOpen LogOp = "open"
)

// LogFormat is the form of the lines in the messages of a log stream.
type LogFormat string

// The formats of a log stream.
const (
	// LogFormatText is for people: with several replicas a line begins with the short name of its own.
	LogFormatText  LogFormat = "text"
	LogFormatRaw   LogFormat = "raw"   // the bytes as they were written
	LogFormatJSON  LogFormat = "json"  // Flyte's TailLogsResponse in protobuf JSON
	LogFormatProto LogFormat = "proto" // Flyte's TailLogsResponse in binary
)

// Structured reports whether the messages are TailLogsResponses.
func (f LogFormat) Structured() bool { return f == LogFormatJSON || f == LogFormatProto }

const (
	logsBranch     = ".logs."
	logsOutBranch  = ".logs.out."
	logsStopBranch = ".logs.stop."
	logsAckBranch  = ".logs.ack."
)

func (op LogOp) validate() error { return oneOf("log operation", op, LogGet, LogTail, LogOpen) }

// Logs is the subject of a log request, "<prefix>.logs.<op>.<project>.<domain>.<app>".
func (s Subjects) Logs(op LogOp, id AppID) (string, error) {
	return opSubject("log subject", s.prefix+logsBranch, op, id)
}

// LogsFilter matches the requests of one operation for all apps, "<prefix>.logs.<op>.*.*.*".
func (s Subjects) LogsFilter(op LogOp) (string, error) {
	return opFilter("log filter", s.prefix+logsBranch, op)
}

// ParseLogs is the inverse of Logs.
func (s Subjects) ParseLogs(subject string) (LogOp, AppID, error) {
	return parseOp[LogOp](s, "log subject", logsBranch, subject)
}

// LogsOut is the subject on which an opened stream arrives, "<prefix>.logs.out.<project>.<id>".
func (s Subjects) LogsOut(project, streamID string) (string, error) {
	return s.logStream(logsOutBranch, project, streamID)
}

// ParseLogsOut is the inverse of LogsOut.
func (s Subjects) ParseLogsOut(subject string) (project, streamID string, err error) {
	return s.parseLogStream(logsOutBranch, subject)
}

// LogsStop is the subject that ends a stream, "<prefix>.logs.stop.<project>.<id>".
func (s Subjects) LogsStop(project, streamID string) (string, error) {
	return s.logStream(logsStopBranch, project, streamID)
}

// ParseLogsStop is the inverse of LogsStop.
func (s Subjects) ParseLogsStop(subject string) (project, streamID string, err error) {
	return s.parseLogStream(logsStopBranch, subject)
}

// LogsAck is the reply subject of a message of a stream,
// "<prefix>.logs.ack.<project>.<id>.<token>": token is the number in HeaderLogSeq, or a word for a
// message that asks something of the server.
func (s Subjects) LogsAck(project, streamID, token string) (string, error) {
	tokens, err := joinTokens(part{"project", project}, part{"stream id", streamID}, part{"token", token})
	if err != nil {
		return "", fmt.Errorf("log acknowledgement subject: %w", err)
	}
	return s.prefix + logsAckBranch + tokens, nil
}

// LogsAckFilter matches every LogsAck of one stream, "<prefix>.logs.ack.<project>.<id>.*".
func (s Subjects) LogsAckFilter(project, streamID string) (string, error) {
	subject, err := s.logStream(logsAckBranch, project, streamID)
	if err != nil {
		return "", err
	}
	return subject + ".*", nil
}

// ParseLogsAck is the inverse of LogsAck.
func (s Subjects) ParseLogsAck(subject string) (project, streamID, token string, err error) {
	parts, err := s.parse("log acknowledgement subject", logsAckBranch, subject, 3)
	if err != nil {
		return "", "", "", err
	}
	return parts[0], parts[1], parts[2], nil
}

func (s Subjects) logStream(branch, project, streamID string) (string, error) {
	tokens, err := joinTokens(part{"project", project}, part{"stream id", streamID})
	if err != nil {
		return "", fmt.Errorf("log stream subject: %w", err)
	}
	return s.prefix + branch + tokens, nil
}

func (s Subjects) parseLogStream(branch, subject string) (project, streamID string, err error) {
	parts, err := s.parse("log stream subject", branch, subject, 2)
	if err != nil {
		return "", "", err
	}
	return parts[0], parts[1], nil
}
