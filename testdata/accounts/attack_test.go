package accounts_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// withRoot adds a user who may do everything in the account APPS.
func withRoot(opts *server.Options) {
	at := slices.IndexFunc(opts.Accounts, func(a *server.Account) bool { return a.Name == "APPS" })
	opts.Users = append(opts.Users, &server.User{Username: "root", Password: password("root"), Account: opts.Accounts[at]})
}

// tap notes the messages of the account APPS.
type tap struct {
	mu   sync.Mutex
	msgs []*nats.Msg
}

func (s *site) tap() *tap {
	s.t.Helper()
	tapped, c := &tap{}, s.client("root")
	if _, err := c.nc.Subscribe(">", func(msg *nats.Msg) {
		tapped.mu.Lock()
		defer tapped.mu.Unlock()
		tapped.msgs = append(tapped.msgs, msg)
	}); err != nil {
		s.t.Fatal(err)
	}
	if err := c.flushed(); err != nil {
		s.t.Fatal(err)
	}
	return tapped
}

func (tap *tap) matching(expression string) []string {
	tap.mu.Lock()
	defer tap.mu.Unlock()
	var subjects []string
	for _, msg := range tap.msgs {
		// What a mirror's consumer delivers has the subject of the event, and the first of these
		// replies; requests of root have the second.
		other := strings.HasPrefix(msg.Reply, "$JS.ACK.") || strings.HasPrefix(msg.Reply, inboxPrefix("root"))
		if !other && regexp.MustCompile(expression).MatchString(msg.Subject) {
			subjects = append(subjects, msg.Subject)
		}
	}
	return subjects
}

// state is where stream and bucket end.
func (s *site) state() string {
	s.t.Helper()
	c := s.client("root")
	defer c.nc.Close()
	var text strings.Builder
	for _, stream := range []string{"FLYTE_APPS", "KV_flyte-apps"} {
		msg, err := c.request("$JS.API.STREAM.INFO."+stream, "")
		if err != nil {
			s.t.Fatal(err)
		}
		var info struct {
			State struct {
				Messages, Bytes uint64
				Last            uint64 `json:"last_seq"`
			} `json:"state"`
		}
		if err := json.Unmarshal(msg.Data, &info); err != nil {
			s.t.Fatal(err)
		}
		fmt.Fprintf(&text, "%s %+v\n", stream, info.State)
	}
	return text.String()
}

// targets are subjects to which only the bridge may have something written, or no user.
func targets() []string {
	return []string{
		"flyte.apps.events.shop.production.forged.created", "flyte.apps.events.bank.production.forged.created",
		"flyte.apps.events.notice", "$KV.flyte-apps.shop.production.forged", "$KV.flyte-apps.bank.production.forged",
		"flyte.apps.api.delete.shop.production.storefront", "flyte.apps.api.delete.bank.production.storefront",
		"flyte.apps.logs.out.bank.forged", "flyte.apps.logs.stop.bank.forged", "$SYS.REQ.SERVER.PING",
		"$JS.API.STREAM.DELETE.FLYTE_APPS", "$JS.ACK.FLYTE_APPS.forged.1.1.1.1.1",
		"apps.API.CONSUMER.CREATE.FLYTE_APPS.forged.flyte.apps.events.shop.>", "mirror.bank.forged", "mirror.shop.forged",
	}
}

// requests are those that some user gets an answer to, with their bodies.
func requests() [][2]string {
	return [][2]string{
		{"$JS.API.INFO", ""},
		{"$JS.API.STREAM.INFO.FLYTE_APPS", ""},
		{"$JS.API.STREAM.NAMES", ""},
		{"$JS.API.STREAM.MSG.GET.FLYTE_APPS", `{"seq":1}`},
		{"$JS.API.DIRECT.GET.FLYTE_APPS", `{"seq":1}`},
		{"$JS.API.CONSUMER.LIST.FLYTE_APPS", ""},
		{"$JS.API.CONSUMER.CREATE.FLYTE_APPS.mine.flyte.apps.events.>", `{"stream_name":"FLYTE_APPS","config":{"name":"mine","filter_subject":"flyte.apps.events.>"}}`},
		{"$JS.API.CONSUMER.MSG.NEXT.FLYTE_APPS.mine", ""},
		{"apps.API.CONSUMER.CREATE.FLYTE_APPS.mine.flyte.apps.events.shop.>", `{"stream_name":"FLYTE_APPS","config":{"name":"mine","filter_subject":"flyte.apps.events.shop.>"}}`},
		{"$SRV.PING", ""},
		{"$SRV.INFO.flyte-apps", ""},
		{"flyte.apps.logs.get.shop.production.storefront", ""},
		{"flyte.apps.logs.tail.shop.production.storefront", ""},
		{"flyte.apps.logs.open.shop.production.storefront", ""},
		{"flyte.apps.api.get.shop.production.storefront", ""},
		{"flyte.apps.api.list.shop", ""},
		{"$SYS.REQ.USER.INFO", ""},
		{"nothing.listens", ""},
	}
}

// forge sends requests with every target as the place of their answer or of their trace.
func (s *site) forge(user string, requests ...[2]string) {
	s.t.Helper()
	c := s.client(user)
	defer c.nc.Close()
	for _, request := range requests {
		for _, target := range targets() {
			for _, msg := range []*nats.Msg{
				{Reply: target},
				{Header: nats.Header{"Nats-Trace-Dest": {target}}},
				{Reply: c.nc.NewInbox(), Header: nats.Header{"Nats-Trace-Dest": {target}, "Nats-Trace-Only": {"true"}}},
			} {
				msg.Subject, msg.Data = request[0], []byte(request[1])
				if err := c.nc.PublishMsg(msg); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}
	if err := c.nc.FlushTimeout(suite.Patience); err != nil {
		s.t.Fatal(err)
	}
}

// push makes consumers that deliver to every target, as far as the user may.
func (s *site) push(user string) (made int) {
	s.t.Helper()
	for i, target := range targets() {
		for _, options := range []string{"", `,"headers_only":true`, `,"flow_control":true,"idle_heartbeat":100000000`} {
			c := s.client(user)
			name := fmt.Sprintf("push-%d-%d", i, len(options))
			_, err := c.request("$JS.API.CONSUMER.CREATE.FLYTE_APPS."+name+".flyte.apps.events.>", fmt.Sprintf(
				`{"stream_name":"FLYTE_APPS","config":{"name":%q,"ack_policy":"none","deliver_policy":"all","filter_subject":"flyte.apps.events.>","deliver_subject":%q%s}}`,
				name, target, options))
			if err == nil {
				made++
			}
			c.nc.Close()
		}
	}
	return made
}

// No user makes the server or the bridge write an event, an entry, a request of another user or
// what a mirror receives.
func TestForgedReplies(t *testing.T) {
	s := serve(t, "nats.conf", withRoot)
	s.run()
	s.answers()
	const forbidden = `^flyte\.apps\.events\.|^\$KV\.|^\$SYS|STREAM\.DELETE|^mirror\..*forged|^flyte\.apps\.logs\.out\.`
	before, heard := s.state(), s.tap()
	for _, user := range slices.DeleteFunc(users(), func(user string) bool { return user == "bridge" }) {
		t.Logf("%s: %d consumers that push", user, s.push(user))
		s.forge(user, requests()...)
	}
	// The bridge has seen the requests that reached it.
	for _, service := range []string{"log", "api"} {
		metric := fmt.Sprintf("appbridge_%s_requests_total", service)
		suite.Eventually(t, suite.Patience, metric+" counts refused replies", func() error {
			body, _, err := s.bridge.Get(t.Context(), "/metrics")
			if err == nil && !regexp.MustCompile(metric+`\{[^}]*result="reply_refused"[^}]*\} [1-9]`).MatchString(body) {
				err = fmt.Errorf("it does not")
			}
			return err
		})
	}
	s.answers() // all that was sent before has been served
	if got := s.state(); got != before {
		t.Errorf("stream and bucket were\n%sand are\n%s", before, got)
	}
	if got := heard.matching(forbidden); len(got) > 0 {
		t.Errorf("the account APPS heard %q", slices.Compact(slices.Sorted(slices.Values(got))))
	}
	// A reader can delete a copy of its own account, which can be made again.
	reader := s.client("shop")
	if err := reader.nc.PublishRequest("$JS.API.DIRECT.GET.FLYTE_APPS", "$JS.API.STREAM.DELETE.FLYTE_APPS", []byte(`{"seq":1000000}`)); err != nil {
		t.Fatal(err)
	}
	suite.Eventually(t, suite.Patience, "the mirror is gone", func() error {
		if _, err := reader.request("$JS.API.STREAM.INFO.FLYTE_APPS", ""); !errors.Is(err, errRefused) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
	s.command(mirrorCommands(t)[0])
	s.mirrored("shop", "FLYTE_APPS", 1)
	// The same does harm in the account of the stream: with a right on the JetStream API, and with
	// the right to ask the bridge as `nats micro` does.
	for _, request := range []string{"$JS.API.STREAM.INFO.FLYTE_APPS", "$SRV.PING"} {
		before := s.state()
		s.forge("root", [2]string{request, ""})
		suite.Eventually(t, suite.Patience, "a forged answer to "+request+" is stored", func() error {
			if s.state() == before {
				return fmt.Errorf("stream and bucket are as before: %s", before)
			}
			return nil
		})
	}
	if got := heard.matching(forbidden); len(got) == 0 {
		t.Error("the tap heard nothing of the forged answers")
	}
}

// Only the id of a log stream stops or acknowledges it, and no other project can use it.
func TestLogStreamID(t *testing.T) {
	s := serve(t, "nats.conf", nil)
	s.run()
	s.answers()
	reader := s.client("log-operator")
	sub, err := reader.nc.SubscribeSync(reader.nc.NewInbox())
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.nc.PublishRequest("flyte.apps.logs.tail.bank.production.storefront", sub.Subject, []byte(`{"follow":true,"window":1,"end":"empty"}`)); err != nil {
		t.Fatal(err)
	}
	first, err := sub.NextMsg(suite.Patience)
	if err != nil {
		t.Fatal(err)
	}
	id, ack := first.Header.Get("Flyte-Log-Stream"), first.Reply
	if id == "" || ack == "" {
		t.Fatalf("the first message is %+v", first)
	}
	for _, attempt := range [][2]string{
		{"shop", "flyte.apps.logs.stop.bank." + id},
		{"shop", "flyte.apps.logs.stop.shop." + id},
		{"shop", "flyte.apps.logs.stop.shop.GUESSED"},
		{"shop", ack},
		{"shop", "flyte.apps.logs.ack.shop." + id + ".1"},
		{"auditor", "flyte.apps.logs.stop.bank." + id},
		{"auditor", ack},
		{"app-operator", "flyte.apps.logs.stop.bank." + id},
		{"app-operator", ack},
		{"shop-admin", ack},
		{"log-operator", "flyte.apps.logs.stop.bank.GUESSED"},
	} {
		c := s.client(attempt[0])
		if _, err := c.request(attempt[1], ""); err == nil {
			t.Errorf("%s: %s is answered", attempt[0], attempt[1])
		} else {
			t.Logf("%s: %v", attempt[0], err)
		}
		c.nc.Close()
	}
	// With a window of one nothing but the first message comes, again and again, until it is acknowledged.
	again, err := sub.NextMsg(suite.Patience)
	if err != nil || again.Reply != ack {
		t.Fatalf("after the attempts comes %+v, %v; want the first message again", again, err)
	}
	if err := reader.nc.Publish(ack, nil); err != nil {
		t.Fatal(err)
	}
	line, err := next(sub, ack)
	if err != nil || !strings.Contains(string(line.Data), "a line of bank") {
		t.Fatalf("after the acknowledgement comes %+v, %v", line, err)
	}
	if _, err := reader.request("flyte.apps.logs.stop.bank."+id, ""); err != nil {
		t.Error(err)
	}
	end, err := next(sub, cmp.Or(line.Reply, ack))
	if err != nil || end.Header.Get("Flyte-Log-End") != "stopped" {
		t.Errorf("the end is %+v, %v", end, err)
	}
}

// next is the next message that is not the one that was seen.
func next(sub *nats.Subscription, seen string) (*nats.Msg, error) {
	for {
		msg, err := sub.NextMsg(suite.Patience)
		if err != nil || msg.Reply != seen {
			return msg, err
		}
	}
}
