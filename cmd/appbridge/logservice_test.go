package main

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// logService stands in for the log service: it answers every request with a
// script.
type logService struct {
	t       *testing.T
	nc      *nats.Conn
	scheme  subjects.Subjects
	stopped chan struct{}

	mu      sync.Mutex
	got     []string // "<app> <body>"
	project string
	reply   string
	seq     int
}

const logStreamID = "stream-1"

func serveLogs(t *testing.T, s *server.Server, script func(*logService)) *logService {
	t.Helper()
	scheme, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	nc, err := nats.Connect(s.ClientURL(), nats.Timeout(suite.Patience), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	v := &logService{t: t, nc: nc, scheme: scheme, stopped: make(chan struct{}, 4)}
	filter, err := scheme.LogsFilter(subjects.LogTail)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe(filter, func(m *nats.Msg) {
		v.asked(m)
		script(v)
	}); err != nil {
		t.Fatal(err)
	}
	stop, err := scheme.LogsStop("shop", logStreamID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe(stop, func(*nats.Msg) { v.stopped <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v *logService) asked(m *nats.Msg) {
	_, app, err := v.scheme.ParseLogs(m.Subject)
	if err != nil {
		v.t.Error(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.got = append(v.got, app.String()+" "+string(m.Data))
	v.project, v.reply, v.seq = app.Project, m.Reply, 0
}

func (v *logService) requests() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.got
}

func (v *logService) wantStop(t *testing.T) {
	t.Helper()
	select {
	case <-v.stopped:
	case <-time.After(suite.Patience):
		t.Error("the service was not told to stop")
	}
}

// message publishes the next message; headers are pairs.
func (v *logService) message(body string, last bool, headers ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m := nats.NewMsg(v.reply)
	m.Data = []byte(body)
	m.Header.Set(subjects.HeaderLogStream, logStreamID)
	if !last {
		v.seq++
		ack, err := v.scheme.LogsAck(v.project, logStreamID, strconv.Itoa(v.seq))
		if err != nil {
			v.t.Error(err)
		}
		m.Reply = ack
		m.Header.Set(subjects.HeaderLogSeq, strconv.Itoa(v.seq))
	}
	for i := 0; i+1 < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	if err := v.nc.PublishMsg(m); err != nil {
		v.t.Error(err)
	}
}

func (v *logService) lines(replica, body string) {
	v.message(body, false, subjects.HeaderLogReplica, replica, subjects.HeaderLogPosition, "place.0")
}

func (v *logService) replicas(list string) {
	v.message(subjects.LogNotePrefix+"replicas: "+list+"\n", false, subjects.HeaderLogNote, string(subjects.LogNoteReplicas), subjects.HeaderLogReplicas, list)
}

func (v *logService) fail(code subjects.Code, text string) {
	v.message(text, false, subjects.HeaderServiceError, text, subjects.HeaderServiceErrorCode, code.HeaderValue())
}

func (v *logService) end(reason subjects.LogEnd) {
	v.message("", true, subjects.HeaderLogEnd, string(reason), subjects.HeaderLogLines, "1", subjects.HeaderStatus, subjects.StatusNoResponders)
}
