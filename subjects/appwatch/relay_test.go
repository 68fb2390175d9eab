package appwatch_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

const (
	apiInfo   = "STREAM.INFO." + subjects.DefaultStream
	apiGet    = "STREAM.MSG.GET." + subjects.DefaultStream
	apiCreate = "CONSUMER.CREATE."
	apiNext   = "CONSUMER.MSG.NEXT."
)

// relay is a JetStream API in front of that of a server. It can change answers, and hold requests for
// messages.
type relay struct {
	js jetstream.JetStream // of a reader

	mu      sync.Mutex
	answer  func(api string, request, reply []byte) []byte // nil: the server's
	count   map[string]int                                 // answers, by request
	holding bool
	held    []func()
}

func newRelay(t *testing.T, url string) *relay {
	t.Helper()
	const prefix = "RELAY.API"
	r := &relay{count: map[string]int{}}
	nc, _ := dial(t, url)
	if _, err := nc.Subscribe(prefix+".>", func(msg *nats.Msg) {
		api := strings.TrimPrefix(msg.Subject, prefix+".")
		if strings.HasPrefix(api, apiNext) {
			r.request(func() { _ = nc.PublishRequest(subjects.JetStreamAPI("")+api, msg.Reply, msg.Data) })
			return
		}
		reply, err := nc.Request(subjects.JetStreamAPI("")+api, msg.Data, patience)
		if err != nil {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count[api]++
		data := reply.Data
		if r.answer != nil {
			data = r.answer(api, msg.Data, data)
		}
		_ = msg.Respond(data)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	client, _ := dial(t, url)
	var err error
	if r.js, err = jetstream.NewWithAPIPrefix(client, prefix); err != nil {
		t.Fatal(err)
	}
	return r
}

// request sends a request for messages, later while they are held.
func (r *relay) request(send func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holding {
		r.held = append(r.held, send)
		return
	}
	send()
}

// hold has requests for messages wait, or sends those that have.
func (r *relay) hold(holding bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holding = holding
	for _, send := range r.held {
		send()
	}
	r.held = nil
}

// set sets the function that changes answers.
func (r *relay) set(answer func(api string, request, reply []byte) []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// answered waits for a number of answers to a request, from here on.
func (r *relay) answered(t *testing.T, api string, n int) {
	t.Helper()
	r.mu.Lock()
	before := r.count[api]
	r.mu.Unlock()
	suite.Eventually(t, patience, fmt.Sprintf("%d answers to %s", n, api), func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if got := r.count[api] - before; got < n {
			return fmt.Errorf("there are %d", got)
		}
		return nil
	})
}

// edit changes an answer.
func edit(data []byte, change func(answer map[string]any)) []byte {
	var answer map[string]any
	if err := json.Unmarshal(data, &answer); err != nil {
		return data
	}
	change(answer)
	edited, err := json.Marshal(answer)
	if err != nil {
		return data
	}
	return edited
}

// clock has the answers to requests for single messages say that those that are selected were stored at
// another time.
func clock(step time.Duration, selected func(sequence uint64) bool) func(api string, request, reply []byte) []byte {
	return func(api string, _, reply []byte) []byte {
		if api != apiGet {
			return reply
		}
		return edit(reply, func(answer map[string]any) {
			m, ok := answer["message"].(map[string]any)
			if !ok || !selected(uint64(m["seq"].(float64))) {
				return
			}
			at, err := time.Parse(time.RFC3339Nano, m["time"].(string))
			if err == nil {
				m["time"] = at.Add(step).Format(time.RFC3339Nano)
			}
		})
	}
}
