package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
	"github.com/appbridge/appbridge/testdata/testenv"
)

const lastingWeight = 24

// lastingFaults are those that a bridge has to report for as long as they last.
func lastingFaults(servers int) []fault {
	lasting := func(name string, play func(context.Context, *injection) error) fault {
		return fault{name: name, weight: lastingWeight, parts: everything, takes: 15 * time.Second, play: play}
	}
	faults := []fault{
		lasting("transform the stream's subjects", transformSubjects),
		lasting("edit a setting that is refused", editSetting),
		lasting("revoke a right on NATS", revokeRight),
		lasting("reach the limit of consumers", reachConsumers),
		lasting("edit the checkpoint in the Lease", editCheckpoint),
		{name: "drop the bucket's metadata", weight: lastingWeight, parts: everything, takes: 5 * time.Second, play: dropMetadata},
		{name: "lower max_payload by a reload", weight: lastingWeight, parts: everything, takes: 12 * time.Second, play: reloadPayload},
		{name: "hang a credential plugin", blinds: true, weight: lastingWeight, parts: everything, takes: 25 * time.Second, play: hangPlugin},
	}
	if servers < 3 {
		return append(faults, lasting("take JetStream from the account", takeJetStream))
	}
	return append(faults,
		fault{name: "leave a lagging NATS server alone", weight: lastingWeight, parts: everything, takes: 30 * time.Second, play: leaveLagging},
	)
}

// renamed is where a transform sends the events; readers of events do not get them.
const renamed = "renamed"

func isRenamed(subject string) bool { return strings.HasPrefix(subject, renamed+".") }

// unrenamed are the messages as they were published. Those that a transform has renamed count as
// removed: acknowledged, and gone before anybody got them. While a transform is set or taken off, the
// replicas of a stream store a message under one name and the other: readers got one message.
func (w *world) unrenamed(all []audit.Message) (messages []audit.Message, removed []subjects.LostRange) {
	events := strings.TrimSuffix(w.names.Events(), ">")
	for _, m := range all {
		if isRenamed(m.Subject) {
			m.Subject = events + strings.TrimPrefix(m.Subject, renamed+".")
			removed = append(removed, subjects.LostRange{From: m.Sequence, To: m.Sequence})
		}
		same := func(had audit.Message) bool {
			return had.Epoch == m.Epoch && had.Sequence == m.Sequence && sameContent(&had, &m)
		}
		if n := len(messages); n > 0 && same(messages[n-1]) {
			continue
		}
		messages = append(messages, m)
	}
	return messages, removed
}

// edited edits a setting of a stream, lets the fault last, and takes the edit back: from a fresh
// read each, as an operator does with the CLI.
func (i *injection) edited(ctx context.Context, stream, what string, names *regexp.Regexp, edit, back func(*jetstream.StreamConfig)) error {
	// A bridge that starts with such a setting exits; one that has started names it.
	if err := poll(ctx, backPatience, func(ctx context.Context) string {
		if _, s := i.anyLeader(ctx); !s.leads() || !s.ready {
			return "no bridge that leads is ready"
		}
		return ""
	}); err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	defer i.differs(what, nil)()
	if err := i.edit(ctx, stream, edit); err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	i.say("%s", what)
	err := i.last(ctx, lasting{what: what, names: names})
	// Whatever becomes of the run, the setting must not stay.
	return errors.Join(err, i.edit(context.WithoutCancel(ctx), stream, back), i.back(ctx))
}

func (i *injection) edit(ctx context.Context, name string, edit func(*jetstream.StreamConfig)) error {
	ctx, cancel := context.WithTimeout(ctx, backPatience)
	defer cancel()
	for {
		stream, err := i.events.js.Stream(ctx, name)
		if err == nil {
			cfg := stream.CachedInfo().Config
			edit(&cfg)
			_, err = i.events.js.UpdateStream(ctx, cfg)
		}
		if api := new(jetstream.APIError); err == nil || errors.As(err, &api) && api.Code < 500 {
			return err
		}
		if testenv.Pause(ctx, sampleInterval) != nil {
			return fmt.Errorf("edit stream %s: %w", name, err)
		}
	}
}

// transformSubjects has the server store under another subject what it acknowledges.
func transformSubjects(ctx context.Context, i *injection) error {
	// What was stored elsewhere nobody got: of that, the net difference is owed.
	defer i.gap(ctx, "the stream's subjects were transformed").heal()
	return i.edited(
		ctx, subjects.DefaultStream, "transform the stream's subjects", regexp.MustCompile(`transform|was acknowledged at sequence`),
		func(cfg *jetstream.StreamConfig) {
			cfg.SubjectTransform = &jetstream.SubjectTransformConfig{Source: i.names.Events(), Destination: renamed + ".>"}
		},
		func(cfg *jetstream.StreamConfig) { cfg.SubjectTransform = nil },
	)
}

// editSetting edits one of the settings that a bridge refuses, of stream or bucket.
func editSetting(ctx context.Context, i *injection) error {
	bucket := subjects.BucketStream(subjects.DefaultBucket)
	edits := []struct {
		stream, what string
		names        string
		edit, back   func(*jetstream.StreamConfig)
	}{
		{
			subjects.DefaultStream, "set no_ack on the stream", `no_ack`,
			func(cfg *jetstream.StreamConfig) { cfg.NoAck = true }, func(cfg *jetstream.StreamConfig) { cfg.NoAck = false },
		},
		{
			bucket, "set no_ack on the bucket", `no_ack`,
			func(cfg *jetstream.StreamConfig) { cfg.NoAck = true }, func(cfg *jetstream.StreamConfig) { cfg.NoAck = false },
		},
		{
			bucket, "set a limit for a value of the bucket", `limit of \d+ bytes|max_msg_size`,
			func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 1 << 20 }, func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = -1 },
		},
		{
			bucket, "set a ttl on the bucket", `ttl|max_age`,
			func(cfg *jetstream.StreamConfig) { cfg.MaxAge = time.Hour }, func(cfg *jetstream.StreamConfig) { cfg.MaxAge = 0 },
		},
		{
			subjects.DefaultStream, "narrow the stream's subjects", `subjects`,
			func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{i.names.Lost()} },
			func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{i.names.Events()} },
		},
	}
	e := edits[i.rng.IntN(len(edits))]
	return i.edited(ctx, e.stream, e.what, regexp.MustCompile(e.names), e.edit, e.back)
}

// limitedByReload reloads the configuration of all servers with limits, and at the end without.
func (i *injection) limitedByReload(ctx context.Context, limits testenv.NATSLimits, meanwhile func(context.Context) error) error {
	err := errors.Join(i.nats.SetLimits(limits), i.nats.Reload())
	if err == nil {
		err = meanwhile(ctx)
	}
	return errors.Join(err, i.nats.SetLimits(testenv.NATSLimits{}), i.nats.Reload(), i.back(ctx))
}

// revokeRight takes a right of the bridges' user away by a reload, and gives it back.
func revokeRight(ctx context.Context, i *injection) error {
	rights := [][]string{{"$JS.API.>"}, {"_INBOX.>"}, {i.names.Events()}, {"$KV.>"}}
	denied := rights[i.rng.IntN(len(rights))]
	what := "deny " + strings.Join(denied, " and ")
	i.say("%s by a reload", what)
	defer i.differs(what, nil)()
	return i.limitedByReload(ctx, testenv.NATSLimits{Deny: denied}, func(ctx context.Context) error {
		return i.last(ctx, lasting{what: what, names: regexp.MustCompile(`.`)}) // any reason: which of the rights shows differs
	})
}

// placeholder is the consumer that the account still takes. Nobody reads from it.
const placeholder = "chaos-placeholder"

// codeMaxConsumers refuses a consumer beyond the limit of the stream or the account.
const codeMaxConsumers jetstream.ErrorCode = 10026

// reachConsumers has the account take one consumer, which there is, and removes all others.
func reachConsumers(ctx context.Context, i *injection) error {
	const what = "reach the account's limit of consumers"
	cfg := jetstream.ConsumerConfig{Durable: placeholder, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverNewPolicy}
	err := i.retried(ctx, func(ctx context.Context) error {
		_, err := i.events.js.CreateOrUpdateConsumer(ctx, subjects.DefaultStream, cfg)
		return err
	})
	if err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	i.say("%s by a reload, and remove the consumers", what)
	defer i.differs(what, nil)()
	err = i.limitedByReload(ctx, testenv.NATSLimits{AccountConsumers: 1}, func(ctx context.Context) error {
		if err := i.consumersRefused(ctx); err != nil {
			i.note("not now: %s: %v", what, err)
			return ctx.Err()
		}
		for _, name := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
			if err := i.retried(ctx, func(ctx context.Context) error { return i.removeConsumers(ctx, name) }); err != nil {
				i.note("not now: consumers of %s: %v", name, err)
				return ctx.Err()
			}
		}
		return i.last(ctx, lasting{what: what, names: regexp.MustCompile(`consumer`)})
	})
	return errors.Join(err, i.retried(context.WithoutCancel(ctx), func(ctx context.Context) error {
		err := i.events.js.DeleteConsumer(ctx, subjects.DefaultStream, placeholder)
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil
		}
		return err
	}))
}

// takeJetStream takes JetStream from the account by a reload, and gives it back. The server then reads
// the streams from its disk: for a moment it says that there are none.
func takeJetStream(ctx context.Context, i *injection) error {
	const what = "take JetStream from the account"
	i.say("%s by a reload", what)
	defer i.differs(what, nil)()
	return i.limitedByReload(ctx, testenv.NATSLimits{NoJetStream: true}, func(ctx context.Context) error {
		return i.last(ctx, lasting{what: what, names: regexp.MustCompile(`.`)}) // any reason: nothing of NATS answers
	})
}

// dropMetadata drops the metadata of the bucket's stream, as an edit with `nats kv edit` does. The next
// session has to find that the bucket is its own.
func dropMetadata(ctx context.Context, i *injection) error {
	bucket := subjects.BucketStream(subjects.DefaultBucket)
	if err := i.edit(ctx, bucket, func(cfg *jetstream.StreamConfig) { cfg.Metadata = nil }); err != nil {
		i.note("not now: drop the metadata of %s: %v", bucket, err)
		return ctx.Err()
	}
	i.say("drop the metadata of %s", bucket)
	return i.back(ctx)
}

// consumersRefused waits until the limit of consumers holds: a server reloads its configuration some time
// after the signal, and a consumer that is removed before comes back.
func (i *injection) consumersRefused(ctx context.Context) error {
	cfg := jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: jetstream.DeliverNewPolicy, InactiveThreshold: time.Minute}
	return i.retried(ctx, func(ctx context.Context) error {
		made, err := i.events.js.CreateConsumer(ctx, subjects.DefaultStream, cfg)
		if api := new(jetstream.APIError); errors.As(err, &api) && api.ErrorCode == codeMaxConsumers {
			return nil
		}
		if err == nil {
			err = i.events.js.DeleteConsumer(ctx, subjects.DefaultStream, made.CachedInfo().Name)
		}
		return cmp.Or(err, errors.New("the account still takes consumers"))
	})
}

// retried does what NATS may not answer at once, as after a reload.
func (i *injection) retried(ctx context.Context, do func(context.Context) error) error {
	return poll(ctx, backPatience, func(ctx context.Context) string {
		ctx, cancel := context.WithTimeout(ctx, storageTimeout)
		defer cancel()
		if err := do(ctx); err != nil {
			return err.Error()
		}
		return ""
	})
}

// removeConsumers removes all consumers of a stream but the placeholder.
func (i *injection) removeConsumers(ctx context.Context, name string) error {
	stream, err := i.events.js.Stream(ctx, name)
	if err != nil {
		return err
	}
	names := stream.ConsumerNames(ctx)
	for consumer := range names.Name() {
		if consumer == placeholder {
			continue
		}
		if err := stream.DeleteConsumer(ctx, consumer); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return err
		}
	}
	return names.Err()
}

// editCheckpoint raises the acknowledged sequences in the Lease far beyond what can be, while both
// bridges start: whoever leads next reads them.
func editCheckpoint(ctx context.Context, i *injection) error {
	sequence := []uint64{2_000_000, 1_000_000_000_000, 1<<64 - 1}[i.rng.IntN(3)]
	what := fmt.Sprintf("edit the checkpoint in the Lease to %d", sequence)
	i.say("restart both bridges, and %s", what)
	defer i.gap(ctx, "both bridges were restarted").heal()
	for _, b := range i.bridges {
		b.stop()
	}
	before, err := i.annotate(ctx, func(text string) (string, error) {
		var c map[string]any
		if err := json.Unmarshal([]byte(text), &c); err != nil {
			return "", err
		}
		c["stream"] = json.Number(fmt.Sprint(sequence))
		edited, err := json.Marshal(c)
		return string(edited), err
	})
	for _, b := range i.bridges {
		err = errors.Join(err, b.start())
	}
	if err != nil {
		i.note("not now: %s: %v", what, err)
		return ctx.Err()
	}
	err = i.last(ctx, lasting{what: what, names: regexp.MustCompile(regexp.QuoteMeta(checkpointAnnotation))})
	_, undo := i.annotate(context.WithoutCancel(ctx), func(string) (string, error) { return before, nil })
	return errors.Join(err, undo, i.back(ctx))
}

// annotate changes the checkpoint in the Lease, and returns the one before.
func (i *injection) annotate(ctx context.Context, edit func(string) (string, error)) (before string, err error) {
	ctx, cancel := context.WithTimeout(ctx, storageTimeout)
	defer cancel()
	key := client.ObjectKey{Namespace: testenv.DefaultNamespace, Name: leaseName}
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease := &coordinationv1.Lease{}
		if err := i.cluster.Client.Get(ctx, key, lease); err != nil {
			return err
		}
		before = lease.Annotations[checkpointAnnotation]
		edited, err := edit(before)
		if err != nil {
			return fmt.Errorf("edit annotation %s, %q: %w", checkpointAnnotation, before, err)
		}
		lease.Annotations[checkpointAnnotation] = edited
		return i.cluster.Client.Update(ctx, lease)
	})
	return before, err
}

// leaveLagging leaves alone a server that has not got the last events: it answers for a stream
// without a leader.
func leaveLagging(ctx context.Context, i *injection) error {
	lagging, err := i.follower(ctx)
	if err != nil {
		i.note("not now: %v", err)
		return ctx.Err()
	}
	behind, alone := i.between(2*time.Second, 5*time.Second), i.between(5*time.Second, 12*time.Second)
	i.say("pause NATS server %d for %s, kill the others, and leave it alone for %s", lagging+1, show(behind), show(alone))
	errs := []error{i.nats.Pause(lagging), testenv.Pause(ctx, behind)}
	for server := range i.nats.Size() {
		if server != lagging {
			errs = append(errs, i.nats.Kill(server))
		}
	}
	errs = append(errs, i.nats.Resume(lagging), testenv.Pause(ctx, alone))
	for server := range i.nats.Size() {
		if server != lagging {
			errs = append(errs, i.nats.Start(ctx, server))
		}
	}
	return errors.Join(append(errs, i.back(ctx))...)
}

// follower is a server that leads neither the stream nor the bucket's.
func (i *injection) follower(ctx context.Context) (int, error) {
	leads := map[int]bool{}
	for _, name := range []string{subjects.DefaultStream, subjects.BucketStream(subjects.DefaultBucket)} {
		server, err := i.nats.Leader(ctx, name)
		if err != nil {
			return 0, err
		}
		leads[server] = true
	}
	for server := range i.nats.Size() {
		if !leads[server] {
			return server, nil
		}
	}
	return 0, errors.New("every server leads something")
}

// hangPlugin is a credential plugin of one bridge that does not return.
func hangPlugin(ctx context.Context, i *injection) error {
	b, s := i.anyLeader(ctx)
	what := fmt.Sprintf("hang the credential plugin of bridge %s, %s", b.name, role(s))
	i.say("%s", what)
	defer i.gap(ctx, "the credential plugin of bridge %s hung", b.name).heal()
	defer i.plants.explain(&cause{why: what, bridge: b.name, sides: []string{sideSource}})()
	if err := b.plugin.hang(); err != nil {
		return err
	}
	err := i.last(ctx, lasting{what: what, bridge: b, names: regexp.MustCompile(`.`)})
	return errors.Join(err, b.plugin.release(), i.back(ctx))
}
