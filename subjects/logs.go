package subjects

import (
	"fmt"
	"strings"
)

// LogOp is a request of the log service.
type LogOp string

// The requests of the log service.
const (
	LogGet  LogOp = "get"  // answers with the last lines in one message
	LogTail LogOp = "tail" // streams to the reply subject of the request
	// LogOpen answers with the subject of a stream that begins when that has a subscriber.
	LogOpen LogOp = "open"
)

const (
	logsBranch     = ".logs."
	logsOutBranch  = ".logs.out."
	logsStopBranch = ".logs.stop."
	logsAckBranch  = ".logs.ack."
)

func (op LogOp) validate() error {
	switch op {
	case LogGet, LogTail, LogOpen:
		return nil
	}
	return fmt.Errorf("%w: log operation %s", ErrInvalidName, quote(string(op)))
}

// Logs is the subject of a log request, "<prefix>.logs.<op>.<project>.<domain>.<app>". The error is
// that of AppID.Validate, or wraps ErrInvalidName for an unknown operation.
func (s Subjects) Logs(op LogOp, id AppID) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("log subject: %w", err)
	}
	key, err := id.Key()
	if err != nil {
		return "", fmt.Errorf("log subject: %w", err)
	}
	return s.prefix + logsBranch + string(op) + "." + key, nil
}

// LogsFilter matches the requests of one operation for all apps, "<prefix>.logs.<op>.*.*.*": what
// the log service listens on. The error wraps ErrInvalidName for an unknown operation.
func (s Subjects) LogsFilter(op LogOp) (string, error) {
	if err := op.validate(); err != nil {
		return "", fmt.Errorf("log filter: %w", err)
	}
	return s.prefix + logsBranch + string(op) + ".*.*.*", nil
}

// ParseLogs is the inverse of Logs.
func (s Subjects) ParseLogs(subject string) (LogOp, AppID, error) {
	op, id, err := s.parseOpID(subject, logsBranch)
	if err == nil {
		err = LogOp(op).validate()
	}
	if err != nil {
		return "", AppID{}, fmt.Errorf("parse log subject %s: %w", quote(subject), err)
	}
	return LogOp(op), id, nil
}

// LogsOut is the subject on which an opened stream arrives,
// "<prefix>.logs.out.<project>.<id>". The error wraps ErrEmptyPart or ErrTooLong.
func (s Subjects) LogsOut(project, streamID string) (string, error) {
	return s.logStream(logsOutBranch, project, streamID)
}

// ParseLogsOut is the inverse of LogsOut.
func (s Subjects) ParseLogsOut(subject string) (project, streamID string, err error) {
	return s.parseLogStream(logsOutBranch, subject)
}

// LogsStop is the subject that ends a stream, "<prefix>.logs.stop.<project>.<id>".
// The error wraps ErrEmptyPart or ErrTooLong.
func (s Subjects) LogsStop(project, streamID string) (string, error) {
	return s.logStream(logsStopBranch, project, streamID)
}

// ParseLogsStop is the inverse of LogsStop.
func (s Subjects) ParseLogsStop(subject string) (project, streamID string, err error) {
	return s.parseLogStream(logsStopBranch, subject)
}

// LogsAck is the reply subject of the messages of a stream,
// "<prefix>.logs.ack.<project>.<id>.<token>": token is the message's number, as
// in HeaderLogSeq, or a word for a message that asks something of the server. The
// error wraps ErrEmptyPart or ErrTooLong.
func (s Subjects) LogsAck(project, streamID, token string) (string, error) {
	tokens, err := joinTokens(part{"project", project}, part{"stream id", streamID}, part{"token", token})
	if err != nil {
		return "", fmt.Errorf("log acknowledgement subject: %w", err)
	}
	return s.prefix + logsAckBranch + tokens, nil
}

// LogsAckFilter matches every LogsAck of one stream,
// "<prefix>.logs.ack.<project>.<id>.*". The error wraps ErrEmptyPart or ErrTooLong.
func (s Subjects) LogsAckFilter(project, streamID string) (string, error) {
	subject, err := s.logStream(logsAckBranch, project, streamID)
	if err != nil {
		return "", err
	}
	return subject + ".*", nil
}

// ParseLogsAck is the inverse of LogsAck.
func (s Subjects) ParseLogsAck(subject string) (project, streamID, token string, err error) {
	rest, err := s.cut(subject, logsAckBranch)
	if err != nil {
		return "", "", "", fmt.Errorf("parse log acknowledgement subject %s: %w", quote(subject), err)
	}
	parts, err := splitTokens(rest, 3)
	if err != nil {
		return "", "", "", fmt.Errorf("parse log acknowledgement subject %s: %w", quote(subject), err)
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
	rest, err := s.cut(subject, branch)
	if err != nil {
		return "", "", fmt.Errorf("parse log stream subject %s: %w", quote(subject), err)
	}
	parts, err := splitTokens(rest, 2)
	if err != nil {
		return "", "", fmt.Errorf("parse log stream subject %s: %w", quote(subject), err)
	}
	return parts[0], parts[1], nil
}

// parseOpID splits "<prefix><branch><op>.<project>.<domain>.<app>". The caller checks the
// operation.
func (s Subjects) parseOpID(subject, branch string) (op string, id AppID, err error) {
	rest, err := s.cut(subject, branch)
	if err != nil {
		return "", AppID{}, err
	}
	op, key, ok := strings.Cut(rest, ".")
	if !ok {
		return "", AppID{}, fmt.Errorf("%w: no app id", ErrMalformed)
	}
	id, err = ParseKey(key)
	return op, id, err
}
