package accounts_test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// action is a row of the table. An error that wraps errRefused is a "no".
type action struct {
	name string
	do   func(ctx context.Context, c *client) error
}

// actions are done in this order; what changes something is last.
func actions() []action {
	var all []action
	for _, project := range []string{"shop", "bank"} {
		all = append(all,
			action{"reads the events of " + project, func(ctx context.Context, c *client) error { return c.readEvents(ctx, project) }},
			action{"reads the states of " + project, func(ctx context.Context, c *client) error { return c.readStates(ctx, project) }},
			action{"reads a message of " + project + " by its number or subject", func(_ context.Context, c *client) error { return c.readMessage(project) }},
			action{"sees names of apps of " + project + " in the stream", func(_ context.Context, c *client) error { return c.seeSubjects(project) }},
			action{"gets and tails the logs of " + project, func(_ context.Context, c *client) error { return c.readLogs(project) }},
			action{"reads the apps of " + project, func(_ context.Context, c *client) error { return c.readApps(project) }},
		)
	}
	all = append(all,
		action{"lists the apps of every project", requested("flyte.apps.api.list", "")},
		action{"lists the consumers of the bridge's stream", func(_ context.Context, c *client) error { return c.listConsumers() }},
		action{"hears requests, acknowledgements or log streams", func(_ context.Context, c *client) error { return c.overhear() }},
		action{"finds the services (`nats micro`)", requested("$SRV.PING", "")},
		action{"reads the reports of the server", requested("$SYS.REQ.SERVER.PING", "")},
	)
	for _, project := range []string{"shop", "bank"} {
		all = append(all,
			action{"deploys an app of " + project, requested("flyte.apps.api.deploy."+project+".production.made",
				`{"app": {"spec": {"container": {"image": "registry.example.com/made:1"}}}}`)},
			action{"writes an event of " + project, func(_ context.Context, c *client) error {
				return c.write("flyte.apps.events." + project + ".production.forged.created")
			}},
			action{"writes an entry of " + project + " to the bucket", func(_ context.Context, c *client) error {
				return c.write("$KV.flyte-apps." + project + ".production.forged")
			}},
		)
	}
	return append(all,
		action{"writes a filler or a notice of loss", func(_ context.Context, c *client) error {
			return errors.Join(c.write("flyte.apps.events.lost"), c.write("flyte.apps.events.notice"))
		}},
		action{"deletes an event", func(_ context.Context, c *client) error { return c.deleteMessage() }},
		action{"purges the stream that it reads", requested("$JS.API.STREAM.PURGE.FLYTE_APPS", `{"filter":"flyte.apps.events.none"}`)},
		action{"makes another stream", requested("$JS.API.STREAM.CREATE.MINE", `{"name":"MINE","subjects":["mine"],"storage":"file"}`)},
	)
}

func requested(subject, body string) func(context.Context, *client) error {
	return func(_ context.Context, c *client) error {
		_, err := c.request(subject, body)
		return err
	}
}

func (c *client) readEvents(ctx context.Context, project string) error {
	msgs, err := c.stream(ctx, "FLYTE_APPS", "flyte.apps.events."+project+".>")
	if err != nil {
		return err
	}
	if got, want := msgs[0].Subject(), "flyte.apps.events."+project+".production.storefront.created"; got != want {
		return fmt.Errorf("the first event is %s, want %s", got, want)
	}
	return nil
}

// readStates uses the bucket as any client does: get, watch, list of keys.
func (c *client) readStates(ctx context.Context, project string) error {
	if _, err := c.request("$JS.API.STREAM.INFO.KV_flyte-apps", ""); err != nil {
		return err
	}
	js, err := jetstream.New(c.nc)
	if err != nil {
		return err
	}
	kv, err := js.KeyValue(ctx, "flyte-apps")
	if err != nil {
		return err
	}
	key := project + ".production.storefront"
	if c.user == "bridge" {
		// It reads the bucket's stream from its leader.
		_, err := c.request("$JS.API.STREAM.MSG.GET.KV_flyte-apps", fmt.Sprintf(`{"last_by_subj":%q}`, "$KV.flyte-apps."+key))
		return err
	}
	if _, err := c.request("$JS.API.DIRECT.GET.KV_flyte-apps.$KV.flyte-apps."+key, ""); err != nil {
		return err
	}
	entry, err := kv.Get(ctx, key)
	if err != nil {
		return err
	}
	watcher, err := kv.Watch(ctx, project+".>")
	if err != nil {
		return err
	}
	defer func() { _ = watcher.Stop() }()
	select {
	case seen := <-watcher.Updates():
		if seen == nil || seen.Key() != key || string(seen.Value()) != string(entry.Value()) {
			return fmt.Errorf("the watch shows %v, want %v", seen, entry)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// readMessage tries every form of reading single messages; one that works is enough.
func (c *client) readMessage(project string) error {
	subject := "flyte.apps.events." + project + ".production.storefront.created"
	var errs []error
	for _, try := range [][2]string{
		{"$JS.API.STREAM.MSG.GET.FLYTE_APPS", fmt.Sprintf(`{"last_by_subj":%q}`, subject)},
		{"$JS.API.STREAM.MSG.GET.FLYTE_APPS", fmt.Sprintf(`{"seq":1,"next_by_subj":%q}`, subject)},
		{"$JS.API.DIRECT.GET.FLYTE_APPS", fmt.Sprintf(`{"last_by_subj":%q}`, subject)},
		{"$JS.API.DIRECT.GET.FLYTE_APPS." + subject, ""},
	} {
		_, err := c.site.client(c.user).request(try[0], try[1])
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	for _, seq := range []string{"1", "2"} {
		msg, err := c.site.client(c.user).request("$JS.API.STREAM.MSG.GET.FLYTE_APPS", `{"seq":`+seq+`}`)
		if err == nil && strings.Contains(string(msg.Data), subject) {
			return nil
		}
	}
	return errors.Join(errs...)
}

func (c *client) seeSubjects(project string) error {
	for _, stream := range []string{"FLYTE_APPS", "KV_flyte-apps"} {
		msg, err := c.request("$JS.API.STREAM.INFO."+stream, `{"subjects_filter":">"}`)
		if err != nil {
			return err
		}
		if strings.Contains(string(msg.Data), "."+project+".production") {
			return nil
		}
		if c.user == "auditor" || c.user == "audit-admin" {
			break
		}
	}
	return fmt.Errorf("%w: no subject of %s", errRefused, project)
}

func (c *client) readLogs(project string) error {
	msg, err := c.request("flyte.apps.logs.get."+project+".production.storefront", "")
	if err != nil {
		return err
	}
	if want := "a line of " + project + "\n"; string(msg.Data) != want {
		return fmt.Errorf("get brings %q, want %q", msg.Data, want)
	}
	// The first message of a stream is the note with the replicas.
	if msg, err = c.request("flyte.apps.logs.tail."+project+".production.storefront", `{"follow": false}`); err != nil {
		return err
	}
	if got := string(msg.Data); !strings.Contains(got, project+"-1") {
		return fmt.Errorf("tail begins with %q", got)
	}
	return nil
}

func (c *client) readApps(project string) error {
	for _, op := range []string{"get", "replicas", "ingress"} {
		if _, err := c.request("flyte.apps.api."+op+"."+project+".production.storefront", ""); err != nil {
			return err
		}
	}
	for _, list := range []string{project, project + ".production"} {
		msg, err := c.request("flyte.apps.api.list."+list, "")
		if err != nil {
			return err
		}
		if !strings.Contains(string(msg.Data), `"storefront"`) {
			return fmt.Errorf("list brings %.200s", msg.Data)
		}
	}
	return nil
}

// marked is a consumer that the bridge's user makes, to know its list of consumers by.
const marked = "of-the-bridge"

// listConsumers wants those of the account APPS.
func (c *client) listConsumers() error {
	_, err := c.site.client("bridge").request("$JS.API.CONSUMER.CREATE.FLYTE_APPS."+marked+".flyte.apps.events.notice",
		`{"stream_name":"FLYTE_APPS","config":{"name":"`+marked+`","filter_subject":"flyte.apps.events.notice","inactive_threshold":60000000000}}`)
	if err != nil {
		return errors.New("the bridge's consumer: " + err.Error())
	}
	msg, err := c.request("$JS.API.CONSUMER.LIST.FLYTE_APPS", "")
	if err != nil {
		return err
	}
	if !strings.Contains(string(msg.Data), marked) {
		return fmt.Errorf("%w: only those of the own account", errRefused)
	}
	return nil
}

// overhear works when what the bridge's user publishes arrives at one of these subscriptions.
func (c *client) overhear() error {
	var errs []error
	bridge := c.site.client("bridge")
	for _, subject := range []string{
		">", "flyte.apps.>", "flyte.apps.logs.ack.>", "flyte.apps.logs.stop.>", "flyte.apps.logs.out.>", "flyte.apps.api.>",
		"flyte.apps.events.>", "$KV.>", "mirror.>", "$JS.>", "_R_.>",
	} {
		other := c.site.client(c.user)
		sub, err := other.subscribe(subject)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, published := range []string{"flyte.apps.logs.ack.shop.heard.1", "flyte.apps.logs.out.shop.heard"} {
			if err := bridge.nc.Publish(published, nil); err != nil {
				return err
			}
		}
		if err := errors.Join(bridge.flushed(), other.flushed()); err != nil {
			return err
		}
		heard, _, err := sub.Pending()
		if err != nil {
			return err
		}
		for range heard {
			msg, err := sub.NextMsg(suite.Patience)
			if err != nil || strings.HasPrefix(msg.Subject, "flyte.apps.logs.") {
				return err
			}
		}
		other.nc.Close()
		errs = append(errs, fmt.Errorf("%w: %s: nothing is heard", errRefused, subject))
	}
	return errors.Join(errs...)
}

// deleteMessage has to remove it from the stream, not from a mirror.
func (c *client) deleteMessage() error {
	if _, err := c.request("$JS.API.STREAM.MSG.DELETE.FLYTE_APPS", `{"seq":1}`); err != nil {
		return err
	}
	if _, err := c.site.client("bridge").request("$JS.API.STREAM.MSG.GET.FLYTE_APPS", `{"seq":1}`); err == nil {
		return fmt.Errorf("%w: only from the mirror", errRefused)
	}
	return nil
}

// write wants the acknowledgement of a stream.
func (c *client) write(subject string) error {
	msg, err := c.request(subject, "forged")
	if err != nil {
		return err
	}
	if !strings.Contains(string(msg.Data), `"stream":`) {
		return fmt.Errorf("%s: the answer is %q", subject, msg.Data)
	}
	return nil
}
