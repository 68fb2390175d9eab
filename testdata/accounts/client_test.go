package accounts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// errRefused: the server did not let a user do something, or the user's account has nothing there.
var errRefused = errors.New("refused")

// client is a connection of a user.
type client struct {
	site *site
	user string
	nc   *nats.Conn
}

// flushed returns what the server has refused so far.
func (c *client) flushed() error {
	if err := c.nc.FlushTimeout(suite.Patience); err != nil {
		return err
	}
	if err := c.nc.LastError(); err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// request returns an answer without an error of the JetStream API or of a service in it.
func (c *client) request(subject, body string) (*nats.Msg, error) {
	sub, err := c.nc.SubscribeSync(c.nc.NewInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := c.nc.PublishRequest(subject, sub.Subject, []byte(body)); err != nil {
		return nil, err
	}
	if err := c.flushed(); err != nil {
		return nil, err
	}
	msg, err := sub.NextMsg(suite.Patience)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%w: %s: %w", errRefused, subject, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	var answer struct {
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if json.Unmarshal(msg.Data, &answer) == nil && answer.Error != nil {
		return nil, fmt.Errorf("%w: %s: %s", errRefused, subject, answer.Error.Description)
	}
	if text := msg.Header.Get("Nats-Service-Error"); text != "" {
		return nil, fmt.Errorf("%w: %s: %s", errRefused, subject, text)
	}
	if status := msg.Header.Get("Status"); status == "404" || status == "408" {
		return nil, fmt.Errorf("%w: %s: status %s", errRefused, subject, status)
	}
	return msg, nil
}

// subscribe is refused, or returns the subscription.
func (c *client) subscribe(subject string) (*nats.Subscription, error) {
	sub, err := c.nc.SubscribeSync(subject)
	if err != nil {
		return nil, err
	}
	return sub, c.flushed()
}

// stream reads the messages of a stream that match a filter with a stock ordered consumer; it wants
// one at least.
func (c *client) stream(ctx context.Context, stream, filter string) ([]jetstream.Msg, error) {
	// The library waits for an answer that a refused request never has.
	create := fmt.Sprintf(`{"stream_name":%q,"config":{"name":"probe","deliver_policy":"all","ack_policy":"none","mem_storage":true,`+
		`"inactive_threshold":60000000000,"filter_subject":%q}}`, stream, filter)
	msg, err := c.request(fmt.Sprintf("$JS.API.CONSUMER.CREATE.%s.probe.%s", stream, filter), create)
	if err != nil {
		return nil, err
	}
	var info struct {
		Pending uint64 `json:"num_pending"`
	}
	if err := json.Unmarshal(msg.Data, &info); err != nil {
		return nil, err
	}
	if info.Pending == 0 {
		return nil, fmt.Errorf("%w: stream %s has nothing of %s", errRefused, stream, filter)
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return nil, err
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return nil, err
	}
	var all []jetstream.Msg
	for range info.Pending {
		msg, err := consumer.Next(jetstream.FetchMaxWait(suite.Patience))
		if err != nil {
			return nil, err
		}
		all = append(all, msg)
	}
	return all, nil
}

// mirrored waits until a mirror has a number of messages.
func (s *site) mirrored(user, stream string, messages uint64) {
	s.t.Helper()
	c := s.client(user)
	suite.Eventually(s.t, suite.Patience, fmt.Sprintf("%s sees the mirror %s", user, stream), func() error {
		msg, err := c.request("$JS.API.STREAM.INFO."+stream, "")
		if err != nil {
			return err
		}
		var info jetstream.StreamInfo
		if err := json.Unmarshal(msg.Data, &info); err != nil {
			return err
		}
		if info.State.Msgs < messages {
			return fmt.Errorf("it has %d messages, want %d: %+v", info.State.Msgs, messages, info.Mirror)
		}
		return nil
	})
}

// mirrorCommands are those of the documentation, and the same for the project bank.
func mirrorCommands(t *testing.T) []string {
	t.Helper()
	dir, page := t.TempDir(), suite.Block(t, filepath.Join(docs, page), "nats --user shop-admin")
	commands := regexp.MustCompile(`(?m)^nats .*$`).FindAllString(page, -1)
	for _, command := range commands {
		if !strings.Contains(command, "shop") {
			continue
		}
		file := regexp.MustCompile(`deploy/nats/(\S+\.json)`).FindStringSubmatch(command)
		if file == nil {
			t.Fatalf("%s has no configuration", command)
		}
		text, err := os.ReadFile(filepath.Join(deploy, file[1]))
		if err != nil {
			t.Fatal(err)
		}
		bank := filepath.Join(dir, file[1])
		if err := os.WriteFile(bank, []byte(strings.ReplaceAll(string(text), "shop", "bank")), 0o600); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, strings.ReplaceAll(strings.Replace(command, file[0], bank, 1), "shop-admin", "bank-admin"))
	}
	return commands
}

// command runs a command line of the documentation in the repository's folder, and returns what it
// prints. The password of its user replaces change-me.
func (s *site) command(line string) string {
	s.t.Helper()
	text := s.prepare(line)
	out, err := text.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

func (s *site) prepare(line string) *exec.Cmd {
	s.t.Helper()
	if user := regexp.MustCompile(`--user ([a-z-]+)`).FindStringSubmatch(line); user != nil {
		line = strings.Replace(line, "change-me", `"`+password(user[1])+`"`, 1)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), suite.Patience)
	s.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Env = append(os.Environ(), "PATH="+s.world.Bin+":"+os.Getenv("PATH"), "HOME="+s.t.TempDir(), "NATS_URL=nats://"+s.server.Addr().String())
	user := "shop"
	if strings.Contains(line, "log-operator") {
		user = "log-operator"
	}
	cmd.Env = append(cmd.Env, "APPBRIDGE_NATS_URL="+s.url(user))
	if s.certs != nil {
		cmd.Env = append(cmd.Env, "NATS_CA="+s.certs.file("ca.crt"), "APPBRIDGE_NATS_TLS_CA="+s.certs.file("ca.crt"))
	}
	if s.mutual {
		cert, key := s.certs.file("client.crt"), s.certs.file("client.key")
		cmd.Env = append(cmd.Env, "NATS_CERT="+cert, "NATS_KEY="+key, "APPBRIDGE_NATS_TLS_CERT="+cert, "APPBRIDGE_NATS_TLS_KEY="+key)
	}
	cmd.Dir, cmd.WaitDelay = filepath.Join("..", ".."), time.Second
	return cmd
}
