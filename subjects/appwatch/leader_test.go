package appwatch_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appwatch"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// member answers for a stream as a member of its group does that is not the leader.
type member struct {
	mu     sync.Mutex
	looks  int // requests for what the stream is
	lacks  uint64
	leader bool // it names a leader, as one does that is no longer the leader
}

// set has it lack the newest messages.
func (m *member) set(lacks uint64, leader bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lacks, m.leader, m.looks = lacks, leader, 0
}

// looked waits until it has been asked a number of times.
func (m *member) looked(t *testing.T, want int) {
	t.Helper()
	suite.Eventually(t, patience, "the reader looks at the stream", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.looks < want {
			return fmt.Errorf("it has %d times, want %d", m.looks, want)
		}
		return nil
	})
}

func (m *member) answer(t *testing.T, data []byte) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.looks++
	if m.lacks == 0 {
		return data
	}
	var info map[string]any
	if err := json.Unmarshal(data, &info); err != nil {
		t.Error(err)
		return data
	}
	state, ok := info["state"].(map[string]any)
	if !ok {
		return data
	}
	state["last_seq"] = state["last_seq"].(float64) - float64(m.lacks)
	cluster := map[string]any{"name": "C"}
	if m.leader {
		cluster["leader"] = "old"
	}
	info["cluster"] = cluster
	data, err := json.Marshal(info)
	if err != nil {
		t.Error(err)
	}
	return data
}

// through is a connection to the JetStream API on which a member answers for the event stream.
func through(t *testing.T, url string, m *member) jetstream.JetStream {
	t.Helper()
	const prefix = "MEMBER.API"
	nc, _ := dial(t, url)
	if _, err := nc.Subscribe(prefix+".>", func(msg *nats.Msg) {
		subject := subjects.JetStreamAPI("") + strings.TrimPrefix(msg.Subject, prefix+".")
		if !strings.HasSuffix(subject, "STREAM.INFO."+subjects.DefaultStream) {
			_ = nc.PublishRequest(subject, msg.Reply, msg.Data)
			return
		}
		if reply, err := nc.Request(subject, msg.Data, patience); err == nil {
			_ = msg.Respond(m.answer(t, reply.Data))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	client, _ := dial(t, url)
	js, err := jetstream.NewWithAPIPrefix(client, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// While a group has no leader, a member answers that has not received the newest message yet, and so
// does one that does not know that it is no longer the leader. The stream has not been rolled back.
func TestMemberBehind(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		opts appwatch.Options
		last func(w *writer) // appends the newest message
		want []string
	}{
		{"event", appwatch.Options{}, func(w *writer) { w.event("shop/production/a", subjects.Updated, "ACTIVE") }, []string{"event shop/production/a updated 2"}},
		{"event, no snapshot", appwatch.Options{NoSnapshot: true}, func(w *writer) { w.event("shop/production/a", subjects.Updated, "ACTIVE") }, []string{"event shop/production/a updated 2"}},
		{"event of another project", appwatch.Options{Project: "shop"}, func(w *writer) { w.event("bank/production/a", subjects.Created, "ACTIVE") }, nil},
		{"other message", appwatch.Options{}, func(w *writer) { w.publish(&nats.Msg{Subject: w.names.Lost()}) }, nil},
	} {
		for _, leader := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, leader %v", tc.name, leader), func(t *testing.T) {
				t.Parallel()
				s, m := jetStream(t), &member{}
				w := newWriter(t, s.ClientURL())
				w.event("shop/production/a", subjects.Created, "ACTIVE")
				r := watch(t, through(t, s.ClientURL(), m), tc.opts)
				if tc.opts.NoSnapshot {
					r.expect("mark 1")
				} else {
					r.expect("state shop/production/a created 1", "mark 1")
				}
				tc.last(w)
				r.expect(tc.want...)
				m.set(0, false)
				m.looked(t, 2)
				m.set(1, leader)
				m.looked(t, 1)
				w.event("shop/production/a", subjects.Updated, "ACTIVE")
				if leader {
					r.expect("event shop/production/a updated 3") // also meanwhile
				}
				m.looked(t, 2)
				m.set(0, false)
				m.looked(t, 1)
				w.event("shop/production/a", subjects.Updated, "ACTIVE")
				if !leader {
					r.expect("event shop/production/a updated 3")
				}
				r.expect("event shop/production/a updated 4")
				r.mu.Lock()
				defer r.mu.Unlock()
				for _, err := range r.reason {
					if errors.Is(err, appwatch.ErrRolledBack) {
						t.Errorf("it reported %v", err)
					}
				}
			})
		}
	}
}
