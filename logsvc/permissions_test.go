package logsvc_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// documentedUsers runs a server with the users of docs/logs.md, whose rights can
// be changed, and one who may do everything.
func documentedUsers(t *testing.T, change func(user string, p *server.Permissions)) *server.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(file, []byte(suite.Block(t, filepath.Join("..", "docs", "logs.md"), "authorization {")), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range opts.Users {
		change(user.Username, user.Permissions)
		user.Password = user.Username
	}
	opts.Users = append(opts.Users, &server.User{Username: "admin", Password: "admin"})
	opts.Port = server.RANDOM_PORT
	return suite.NATS(t, opts)
}

// try reads logs in every way there is, and is what does not work. wait is how
// long something that works may take.
func try(t *testing.T, s *server.Server, wait time.Duration) error {
	t.Helper()
	as := func(user string) *nats.Conn {
		return dial(t, s.ClientURL(), nats.UserInfo(user, user), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	}
	source := &written{replicas: []string{"a"}, run: func(ctx context.Context, q logsvc.Query, out logsvc.Sink) error {
		if err := out.Lines(ctx, "a", []logsvc.Line{line(0, "hello")}, true, ""); err != nil || q.Follow == logsvc.FollowNever {
			return err
		}
		return forever(ctx, q, out)
	}}
	cfg := logsvc.Config{Prefix: subjects.DefaultPrefix, MaxStreams: 10, InboxPrefix: "_INBOX", Version: "1.2.3"}
	service, err := logsvc.New(cfg, source, as("appbridge"), as("appbridge"), zap.NewNop(), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	service.BePatient(patience)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- service.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	names, err := subjects.New(cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, server: s, nc: as("shop"), names: names}
	admin, deadline := as("admin"), time.Now().Add(4*wait)
	for {
		err := listens(admin, wait)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("ping: %w", err)
		}
		<-time.After(10 * time.Millisecond) // it has not begun to listen
	}
	for _, check := range []func(*bench, *written, time.Duration) error{tryGet, tryOpen, tryTail} {
		if err := check(b, source, wait); err != nil {
			return err
		}
	}
	return nil
}

func tryGet(b *bench, _ *written, wait time.Duration) error {
	msg, err := b.nc.Request(b.subject(subjects.LogGet), nil, wait)
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	if got := string(msg.Data); got != "hello\n" {
		return fmt.Errorf("get brings %q", got)
	}
	return nil
}

// tryOpen also has the reader leave.
func tryOpen(b *bench, source *written, wait time.Duration) error {
	msg, err := b.nc.Request(b.subject(subjects.LogOpen), nil, wait)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	in := b.inbox(string(msg.Data))
	defer func() { _ = in.sub.Unsubscribe() }() // twice is no harm
	for _, want := range []string{"# appbridge: replicas: a\n", "hello\n"} {
		if msg, err = in.within(wait); err != nil || string(msg.Data) != want {
			return fmt.Errorf("the opened stream brings %v, want %q: %w", msg, want, err)
		}
	}
	if err := in.sub.Unsubscribe(); err != nil {
		b.t.Fatal(err)
	}
	deadline := time.Now().Add(wait)
	for source.taken.Load() > 0 {
		if time.Now().After(deadline) {
			return errors.New("the reader left, and nobody noticed")
		}
		<-time.After(10 * time.Millisecond)
	}
	return nil
}

// tryTail acknowledges, and stops the stream.
func tryTail(b *bench, _ *written, wait time.Duration) error {
	in := b.tail(`{"window": 1}`)
	for _, want := range []string{"# appbridge: replicas: a\n", "hello\n"} {
		msg, err := in.within(wait)
		if err != nil || string(msg.Data) != want {
			return fmt.Errorf("tail brings %v, want %q: %w", msg, want, err)
		}
		if err := b.nc.Publish(msg.Reply, nil); err != nil {
			b.t.Fatal(err)
		}
		if want != "hello\n" {
			continue
		}
		stop, err := b.names.LogsStop("shop", msg.Header.Get(subjects.HeaderLogStream))
		if err != nil {
			b.t.Fatal(err)
		}
		if _, err := b.nc.Request(stop, nil, wait); err != nil {
			return fmt.Errorf("stop: %w", err)
		}
	}
	if end, err := in.within(wait); err != nil || end.Header.Get(subjects.HeaderLogEnd) != string(subjects.LogEndStopped) {
		return fmt.Errorf("the end is %v: %w", end, err)
	}
	return nil
}

// within is the next message that did not come before.
func (in *inbox) within(wait time.Duration) (*nats.Msg, error) {
	in.t.Helper()
	for {
		select {
		case msg := <-in.msgs:
			if !in.again(msg) {
				return msg, nil
			}
		case <-time.After(wait):
			return nil, errors.New("nothing comes")
		}
	}
}

// The rights that docs/logs.md names are enough and not too many, but for that
// on replies to other accounts, which TestOtherAccount is about.
func TestPermissions(t *testing.T) {
	t.Parallel()
	t.Run("as documented", func(t *testing.T) {
		t.Parallel()
		if err := try(t, documentedUsers(t, func(string, *server.Permissions) {}), patience); err != nil {
			t.Error(err)
		}
	})
	var grants []string
	documentedUsers(t, func(user string, p *server.Permissions) {
		for _, subject := range p.Publish.Allow {
			grants = append(grants, user+" publishes "+subject)
		}
		for _, subject := range p.Subscribe.Allow {
			grants = append(grants, user+" subscribes to "+subject)
		}
	})
	if got, want := len(grants), 9; got != want {
		t.Errorf("%d rights are documented, want %d: %q", got, want, grants)
	}
	for _, grant := range grants {
		if strings.Contains(grant, "_R_") {
			continue
		}
		t.Run("not "+grant, func(t *testing.T) {
			t.Parallel()
			s := documentedUsers(t, func(user string, p *server.Permissions) {
				p.Publish.Allow = slices.DeleteFunc(p.Publish.Allow, func(subject string) bool { return user+" publishes "+subject == grant })
				p.Subscribe.Allow = slices.DeleteFunc(p.Subscribe.Allow, func(subject string) bool { return user+" subscribes to "+subject == grant })
			})
			err := try(t, s, 5*time.Second)
			if err == nil {
				t.Error("all works without it")
			}
			t.Log(err)
		})
	}
	t.Run("another project", func(t *testing.T) {
		t.Parallel()
		s := documentedUsers(t, func(user string, p *server.Permissions) {
			if user == "shop" {
				for _, list := range [][]string{p.Publish.Allow, p.Subscribe.Allow} {
					for i := range list {
						list[i] = strings.ReplaceAll(list[i], ".shop.", ".bank.")
					}
				}
			}
		})
		if err := try(t, s, 5*time.Second); err == nil || !strings.HasPrefix(err.Error(), "get: ") {
			t.Errorf("got %v, want no answer", err)
		}
	})
}
