package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const (
	holdFor    = 20 * time.Second // what a reader that holds a stream keeps it for
	aliveEvery = 10 * time.Second
	fullBody   = 1<<20 - 1<<10
	specSize   = 150 << 10 // near what Kubernetes takes of annotations
)

// expressions cost much to compile or to match; the last one is none.
func expressions() []string {
	return []string{
		"(" + strings.Repeat("a", 1000) + "){1000}",
		"((((a{10}){10}){10}))" + strings.Repeat("(a{1000})", 100),
		strings.Repeat("a{1000}", 140),
		strings.Repeat(".*", 240) + "z",
		strings.Repeat("(x?x?)*", 40) + "y",
		"(",
	}
}

// readerAttacks are what hostile readers do.
func readerAttacks() []attack {
	return []attack{
		{"expressions", func(ctx context.Context, a *attacker) error {
			options := fmt.Sprintf(`{"include": %q, "exclude": %q, "tail": 100000}`, pick(a, expressions()...), pick(a, expressions()...))
			if a.rng.IntN(2) == 0 {
				_, err := a.request(ctx, a.log(subjects.LogGet, pick(a, appLong, appEmpty)), "", []byte(options))
				return err
			}
			return a.tail(ctx, appLong, options, hostilePatience, func(*nats.Msg) bool { return true })
		}},
		{"the whole log in one message", func(ctx context.Context, a *attacker) error {
			_, err := a.request(ctx, a.log(subjects.LogGet, pick(a, appEmpty, appLong)), "", []byte(`{"tail": 1000000}`))
			return err
		}},
		{"a window that is never acknowledged", func(ctx context.Context, a *attacker) error {
			said := time.Now()
			return a.tail(ctx, pick(a, appLive, appEmpty), `{"window": 1024, "format": "raw", "tail": 1000000, "follow": true}`, holdFor, func(msg *nats.Msg) bool {
				if time.Since(said) > aliveEvery && msg.Reply != "" {
					said = time.Now()
					at := strings.LastIndexByte(msg.Reply, '.')
					return a.nc.Publish(msg.Reply[:at+1]+"0", nil) == nil
				}
				return true
			})
		}},
		{"JSON to a connection that is not read", func(ctx context.Context, a *attacker) error {
			return a.deaf(ctx, pick(a, appEmpty, appLive), pick(a, `{"format": "json", "tail": 1000000, "follow": true}`, `{"format": "json", "window": 1, "follow": true}`), holdFor)
		}},
		{"readers that leave", func(ctx context.Context, a *attacker) error {
			err := a.tail(ctx, pick(a, appLive, appEmpty), `{"tail": 100000, "follow": true}`, hostilePatience, func(*nats.Msg) bool { return a.rng.IntN(10) > 0 })
			a.leave()
			return err
		}},
		{"streams that nobody listens to", func(ctx context.Context, a *attacker) error {
			_, err := a.request(ctx, a.log(subjects.LogOpen, appLive), "", []byte(`{"follow": true}`))
			return err
		}},
		{"forged trace reports", func(ctx context.Context, a *attacker) error {
			report := []byte(`{"events":[` + strings.TrimSuffix(strings.Repeat("{},", fullBody/3), ",") + `]}`)
			return a.tail(ctx, appLive, `{"follow": true}`, hostilePatience, func(msg *nats.Msg) bool {
				id := msg.Header.Get(subjects.HeaderLogStream)
				if id == "" {
					return true // nobody serves logs
				}
				for _, token := range []string{"trace", "probe", "1"} {
					if a.nc.Publish(must(a.h.w.names.LogsAck(a.project, id, token)), report) != nil {
						return false
					}
				}
				return testenv.Pause(ctx, hostilePause) == nil
			})
		}},
		{"floods of log requests", func(ctx context.Context, a *attacker) error {
			return a.flood(ctx, func() (string, string, []byte) {
				op := pick(a, subjects.LogGet, subjects.LogTail, subjects.LogOpen)
				body := pick(a, "", "{", "[]", "null", `{"no such option": 1}`, `{"tail": -1}`, strings.Repeat("[", 16<<10), strings.Repeat("x", 32<<10))
				return a.log(op, pick(a, appEmpty, appLong, appLive, "nothing")), a.replyTo(), []byte(body)
			})
		}},
		{"stops", func(ctx context.Context, a *attacker) error {
			own := rand.Text()
			err := a.tail(ctx, appLive, `{"follow": true}`, hostilePatience, func(msg *nats.Msg) bool {
				own = cmp.Or(msg.Header.Get(subjects.HeaderLogStream), own)
				return false
			})
			if err != nil {
				return err
			}
			return a.flood(ctx, func() (string, string, []byte) {
				return must(a.h.w.names.LogsStop(a.project, pick(a, own, rand.Text()))), a.replyTo(), nil
			})
		}},
		{"as fast as it goes", func(ctx context.Context, a *attacker) error {
			return a.tail(ctx, pick(a, appEmpty, appLive), `{"window": 256, "format": "proto", "tail": 1000000, "follow": true}`, holdFor, func(msg *nats.Msg) bool {
				return msg.Reply == "" || a.nc.Publish(msg.Reply, nil) == nil
			})
		}},
	}
}

// replyTo is an inbox, or a subject into which nobody may have the bridge write.
func (a *attacker) replyTo() string {
	if a.rng.IntN(4) > 0 {
		return nats.NewInbox()
	}
	tenant := hostileApp(tenantProject, "shop")
	return pick(a, "",
		must(a.h.w.names.Event(tenant, subjects.Deleted)), subjects.BucketSubject(subjects.DefaultBucket, must(tenant.Key())),
		must(a.h.w.names.LogsOut(tenantProject, "stolen")), must(a.h.w.names.API(subjects.APIDelete, tenant)),
	)
}

// requesterAttacks are what hostile requesters do.
func requesterAttacks() []attack {
	return []attack{
		{"lists of everything", func(ctx context.Context, a *attacker) error {
			return a.pages(ctx, pick(a, "0", "100000"))
		}},
		{"lists in small pages", func(ctx context.Context, a *attacker) error {
			return a.pages(ctx, "1")
		}},
		{"bad tokens", func(ctx context.Context, a *attacker) error {
			body := fmt.Sprintf(`{"request": {"token": %q}}`, pick(a, rand.Text(), strings.Repeat("A", 512<<10), "eyJsIjoiIn0"))
			_, err := a.request(ctx, a.list(), "", []byte(body))
			return err
		}},
		{"bodies of 1 MiB", func(ctx context.Context, a *attacker) error {
			subject := pick(a, a.list(), a.api(subjects.APIGet, appLive), a.api(subjects.APIDeploy, appLive), a.api(subjects.APIReplicas, appLive))
			body := pick(a, bytes.Repeat([]byte("x"), fullBody), bytes.Repeat([]byte("["), fullBody), []byte(`{"request": {"limit": 1}`+strings.Repeat(" ", fullBody)+"}"))
			_, err := a.request(ctx, subject, "", body)
			return err
		}},
		{"messages that grow when they are read", func(ctx context.Context, a *attacker) error {
			// CreateRequest.app, App.spec, Spec.container, then empty Container.env or Container.ports.
			body := nested(empty(pick(a, protowire.Number(5), 7), fullBody), 1, 2, 1)
			_, err := a.request(ctx, a.api(subjects.APIDeploy, "grown"), subjects.ContentTypeProtobuf, body)
			return err
		}},
		{"large deploys", func(ctx context.Context, a *attacker) error {
			return a.deploy(ctx, "large-"+strconv.Itoa(a.rng.IntN(3)), specSize)
		}},
		{"floods of reads", func(ctx context.Context, a *attacker) error {
			return a.flood(ctx, func() (string, string, []byte) {
				return pick(a, a.list(), a.api(subjects.APIGet, appLive), a.api(subjects.APIReplicas, appEmpty)), a.replyTo(), nil
			})
		}},
		{"requesters that leave", func(ctx context.Context, a *attacker) error {
			inbox := a.nc.NewInbox()
			sub, err := a.nc.SubscribeSync(inbox)
			if err != nil {
				return err
			}
			err = a.flood(ctx, func() (string, string, []byte) { return a.list(), inbox, nil })
			_ = sub.Unsubscribe() // it leaves
			a.leave()
			return err
		}},
		{"garbage", func(ctx context.Context, a *attacker) error {
			body := make([]byte, a.rng.IntN(64<<10))
			_, _ = rand.Read(body) // it never fails
			subject := pick(a, a.list(), a.api(subjects.APIGet, appLive), a.api(subjects.APIDeploy, "garbage"), a.api(subjects.APIStop, "garbage"), a.api(subjects.APIDelete, "garbage"), a.api(subjects.APIDeleteReplica, appLive))
			_, err := a.request(ctx, subject, pick(a, "", subjects.ContentTypeJSON, subjects.ContentTypeProtobuf, "text/html", "application/json; x"), body)
			return err
		}},
		{"deploys that wait for one app", func(ctx context.Context, a *attacker) error {
			var all sync.WaitGroup
			for range 20 {
				size := 1 + a.rng.IntN(1000)
				all.Go(func() { _ = a.deploy(ctx, "contended", size) })
			}
			all.Wait()
			return nil
		}},
	}
}

// pages reads a list to its end.
func (a *attacker) pages(ctx context.Context, limit string) error {
	token := ""
	for range 100 {
		answer, err := a.request(ctx, a.list(), "", fmt.Appendf(nil, `{"request": {"limit": %s, "token": %q}}`, limit, token))
		if err != nil {
			return err
		}
		// Reading all of it would cost this process more than the bridge.
		_, rest, _ := bytes.Cut(answer.Data[max(0, len(answer.Data)-512):], []byte(`"token":"`))
		next, _, _ := bytes.Cut(rest, []byte(`"`))
		if token = string(next); token == "" {
			return nil
		}
	}
	return nil
}

// deploy deploys an app whose specification has about so many bytes.
func (a *attacker) deploy(ctx context.Context, name string, size int) error {
	unit := rand.Text()
	body, err := protojson.Marshal(&appv1.CreateRequest{App: &appv1.App{Spec: &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
		Image: "registry.example.com/hostile:1", Ports: []*appv1.ContainerPort{{ContainerPort: 8080}},
		Args: []string{strings.Repeat(unit, size/len(unit)+1)},
	}}}}})
	if err != nil {
		return err
	}
	_, err = a.request(ctx, a.api(subjects.APIDeploy, name), "", body)
	return err
}

// empty is a message with an empty field, again and again.
func empty(field protowire.Number, size int) []byte {
	return bytes.Repeat(protowire.AppendBytes(protowire.AppendTag(nil, field, protowire.BytesType), nil), size/2)
}

// nested puts a message into fields, the last one first.
func nested(b []byte, fields ...protowire.Number) []byte {
	for _, f := range fields {
		b = protowire.AppendBytes(protowire.AppendTag(nil, f, protowire.BytesType), b)
	}
	return b
}
