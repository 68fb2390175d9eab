package rbac_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// logLine is what every pod of the test writes.
const logLine = "the log of a pod"

// errTransient is the error of a request that can be made again: the bridge does not know
// everything yet that the test has just created.
var errTransient = errors.New("not yet")

// app creates an app that serves, with one pod, as an administrator.
func (s *site) app(name string) (id subjects.AppID, pod string) {
	s.t.Helper()
	return s.appIn(s.apps(), name)
}

func (s *site) appIn(namespace, name string) (id subjects.AppID, pod string) {
	s.t.Helper()
	app := testenv.App{Project: s.name, Domain: "production", Name: name, Namespace: namespace}
	svc, err := s.Create(s.t.Context(), app)
	s.must(err)
	_, err = s.Ready(s.t.Context(), svc, "", 1)
	s.must(err)
	running, err := s.Kubelet.RunPod(s.t.Context(), testenv.PodOptions{
		Namespace: namespace, Service: svc.Name, Revision: svc.Name + "-00001",
	})
	s.must(err)
	running.Write(logLine)
	return app.ID(), running.Name()
}

// fails does everything that appbridge can do, and returns what does not work, with the error.
func (s *site) fails() map[string]string {
	s.t.Helper()
	read, pod := s.app("read")
	failed := map[string]string{}
	var mu sync.Mutex
	var running sync.WaitGroup
	try := func(what string, op func() error) {
		running.Go(func() {
			if err := again(s.t.Context(), op); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[what] = err.Error()
			}
		})
	}
	more, morePod := s.appIn(s.more(), "more")
	try("events", func() error { return s.published(read) })
	try("events of another namespace", func() error { return s.published(more) })
	try(doesMore, func() error { return s.replicas(more, morePod) })
	try("the bucket", func() error { return s.entry(read) })
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIIngress} {
		try("`"+string(op)+"`", func() error { return s.operate(op, read, nil, "") })
	}
	try("`list`", func() error { return s.lists(read) })
	try(doesReplicas, func() error { return s.replicas(read, pod) })
	try(doesLogGet, func() error { return s.logs(subjects.LogGet, read, `{"follow": false}`) })
	try(doesLogTail, func() error { return s.logs(subjects.LogTail, read, `{"follow": true}`) })
	if s.variant.writes {
		s.tryWrites(try)
	}
	running.Wait()
	return failed
}

// tryWrites does each thing that changes apps, with objects of its own.
func (s *site) tryWrites(try func(what string, op func() error)) {
	s.t.Helper()
	id := subjects.AppID{Project: s.name, Domain: "production", Name: "new"}
	what := doesDeploy
	if s.variant.makes {
		what = doesNamespace
	}
	write := func(
		what string, op subjects.APIOp, id subjects.AppID, body proto.Message, want subjects.Outcome,
	) {
		try(what, func() error { return s.operate(op, id, body, want) })
	}
	write(what, subjects.APIDeploy, id, wanted(id), subjects.OutcomeCreated)
	id, _ = s.app("changed")
	write(doesRedeploy, subjects.APIDeploy, id, wanted(id), subjects.OutcomeUpdated)
	id, _ = s.app("stopped")
	write(doesStop, subjects.APIStop, id, nil, subjects.OutcomeStopped)
	id, _ = s.app("deleted")
	write(doesDelete, subjects.APIDelete, id, nil, subjects.OutcomeDeleted)
	id, pod := s.app("restarted")
	replica := &appv1.ReplicaIdentifier{Name: pod}
	write(doesReplica, subjects.APIDeleteReplica, id, replica, subjects.OutcomeDeleted)
}

// wanted is the request to deploy an app.
func wanted(id subjects.AppID) *appv1.CreateRequest {
	return &appv1.CreateRequest{App: &appv1.App{
		Metadata: &appv1.Meta{
			Id: &appv1.Identifier{Project: id.Project, Domain: id.Domain, Name: id.Name},
		},
		Spec: &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
			Image: "registry.example.com/wanted:2", Ports: []*appv1.ContainerPort{{ContainerPort: 8080}},
		}}},
	}}
}

// again repeats op while its error is transient.
func again(ctx context.Context, op func() error) error {
	ctx, cancel := context.WithTimeout(ctx, suite.Patience)
	defer cancel()
	for {
		err := op()
		if !errors.Is(err, errTransient) || testenv.Pause(ctx, 50*time.Millisecond) != nil {
			return err
		}
	}
}

// request makes a request; the error is that of the answer, with its code.
func (s *site) request(subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), suite.Patience)
	defer cancel()
	msg, err := s.nc.RequestWithContext(ctx, subject, body)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, fmt.Errorf("%w: %w", errTransient, err)
	}
	if err != nil {
		return nil, err
	}
	return msg, refusal(msg)
}

// refusal is the error that a message is.
func refusal(msg *nats.Msg) error {
	text := msg.Header.Get(subjects.HeaderServiceError)
	switch code := msg.Header.Get(subjects.HeaderServiceErrorCode); code {
	case "":
		return nil
	case subjects.CodeNotFound.HeaderValue(), subjects.CodeUnavailable.HeaderValue():
		return fmt.Errorf("%w: %s %s", errTransient, code, text)
	default:
		return fmt.Errorf("%s %s", code, text)
	}
}

func (s *site) operate(
	op subjects.APIOp, id subjects.AppID, body proto.Message, want subjects.Outcome,
) error {
	subject, err := s.names.API(op, id)
	if err != nil {
		return err
	}
	var text []byte
	if body != nil {
		if text, err = protojson.Marshal(body); err != nil {
			return err
		}
	}
	answer, err := s.request(subject, text)
	if err != nil {
		return err
	}
	switch got := subjects.Outcome(answer.Header.Get(subjects.HeaderOutcome)); got {
	case want:
		return nil
	case subjects.OutcomeMissing: // the cache does not have the app yet
		return fmt.Errorf("%w: %s", errTransient, got)
	default:
		return fmt.Errorf("got outcome %q, want %q", got, want)
	}
}

func (s *site) lists(id subjects.AppID) error {
	subject, err := s.names.APIList(id.Project, "")
	if err != nil {
		return err
	}
	answer, err := s.request(subject, nil)
	if err != nil {
		return err
	}
	page := &appv1.ListResponse{}
	if err := protojson.Unmarshal(answer.Data, page); err != nil {
		return err
	}
	for _, app := range page.GetApps() {
		if app.GetMetadata().GetId().GetName() == id.Name {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", errTransient, answer.Data)
}

func (s *site) replicas(id subjects.AppID, pod string) error {
	subject, err := s.names.API(subjects.APIReplicas, id)
	if err != nil {
		return err
	}
	answer, err := s.request(subject, nil)
	if err != nil {
		return err
	}
	list := &appv1.ReplicaList{}
	if err := protojson.Unmarshal(answer.Data, list); err != nil {
		return err
	}
	if len(list.GetItems()) != 1 || list.GetItems()[0].GetMetadata().GetId().GetName() != pod {
		return fmt.Errorf("%w: %s", errTransient, answer.Data)
	}
	return nil
}

// logs reads until the line comes that the pod has written.
func (s *site) logs(op subjects.LogOp, id subjects.AppID, options string) error {
	subject, err := s.names.Logs(op, id)
	if err != nil {
		return err
	}
	answers, err := s.nc.SubscribeSync(s.nc.NewInbox())
	if err != nil {
		return err
	}
	defer func() { _ = answers.Unsubscribe() }() // an open stream ends with it
	if err := s.nc.PublishRequest(subject, answers.Subject, []byte(options)); err != nil {
		return err
	}
	for {
		msg, err := answers.NextMsg(suite.Patience)
		if errors.Is(err, nats.ErrNoResponders) {
			return fmt.Errorf("%w: %w", errTransient, err) // no service yet, or an empty log has ended
		}
		if err != nil {
			return err
		}
		if err := refusal(msg); err != nil {
			return err
		}
		if strings.Contains(string(msg.Data), logLine) {
			return nil
		}
		if op == subjects.LogGet {
			return fmt.Errorf("%w: %s", errTransient, msg.Data)
		}
	}
}

func (s *site) published(id subjects.AppID) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return err
	}
	subject, err := s.names.Event(id, subjects.Updated)
	if err != nil {
		return err
	}
	stream, err := js.Stream(s.t.Context(), s.stream())
	if err != nil {
		return err
	}
	_, err = stream.GetLastMsgForSubject(s.t.Context(), subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("%w: %w", errTransient, err)
	}
	return err
}

func (s *site) entry(id subjects.AppID) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return err
	}
	key, err := id.Key()
	if err != nil {
		return err
	}
	bucket, err := js.KeyValue(s.t.Context(), s.bucket())
	if err != nil {
		return err
	}
	_, err = bucket.Get(s.t.Context(), key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("%w: %w", errTransient, err)
	}
	return err
}

// verify runs `appbridge verify`, and returns the error that it prints.
func (s *site) verify() string {
	s.t.Helper()
	args := append([]string{"verify"}, s.options...)
	cmd := s.Prepare(exec.CommandContext(s.t.Context(), "appbridge", args...))
	var out, problems strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problems
	err := cmd.Run()
	if err == nil && strings.Contains("\n"+out.String(), "\nno difference in ") {
		return ""
	}
	_, failure, found := strings.Cut(problems.String(), "appbridge: the comparison failed: ")
	if !found {
		s.t.Errorf("verify: %v\n%s%s", err, out.String(), problems.String())
	}
	return strings.TrimSpace(failure)
}
