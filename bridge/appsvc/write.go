package appsvc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// unavailablePatience bounds the wait for an unavailable Kubernetes.
	unavailablePatience = 2500 * time.Millisecond
	firstRetry          = 10 * time.Millisecond
	slowestRetry        = 500 * time.Millisecond
	// The ends of the errors of writes that may be repeated.
	nothingWritten = "; nothing was written"
	mayBeWritten   = "; it may have been written: ask again"
)

// errNamespaceMade: the missing namespace exists now.
var errNamespaceMade = errors.New("the namespace was made")

// terminatingError: the object must be gone before a new one can be created.
type terminatingError struct {
	at         types.NamespacedName
	finalizers []string
}

func (e *terminatingError) Error() string {
	text := "Knative Service " + e.at.String() + " is being deleted"
	if len(e.finalizers) > 0 {
		text += " and waits for the finalizers " + strings.Join(e.finalizers, ", ")
	}
	return text
}

func (e *terminatingError) failure() *request.Error {
	return request.Errorf(subjects.CodeFailedPrecondition, "app: %v: deploy again once it is gone", e)
}

// deploy creates an app, changes it, or restarts a stopped one.
func (s *Service) deploy(ctx context.Context, r *apiRequest) (*reply, error) {
	body := &appv1.CreateRequest{}
	p, err := r.decodeApp(body)
	if err != nil {
		return nil, err
	}
	desired, wrong, denied := kservice.Build(r.app, body.GetApp(), s.cfg.Deploy)
	wrong = append(p.Texts(), wrong...)
	if desired != nil { // else the policy comes before Knative's rules
		found, err := s.checked(ctx, r, desired, body.GetApp())
		if err != nil {
			return nil, err
		}
		wrong = append(wrong, found...)
	}
	if err := invalid(wrong); err != nil {
		return nil, err
	}
	if len(denied) > 0 {
		return nil, request.Errorf(subjects.CodePermissionDenied, "%s", strings.Join(denied, "; "))
	}
	kservice.DropOverridden(desired, s.cfg.Deploy)
	var now *live
	var outcome, sent subjects.Outcome
	err = s.write(ctx, func(ctx context.Context) (written bool, err error) {
		now, outcome, err = s.tryDeploy(ctx, r.app, desired)
		if unanswered(err) && outcome != "" {
			sent = outcome
		}
		return sent != "", err
	})
	if err != nil {
		return nil, err
	}
	if outcome == subjects.OutcomeUnchanged && sent != "" {
		outcome = sent // the try before succeeded
	}
	rep, err := s.appNow(ctx, r, now, func(app *appv1.App) proto.Message { return &appv1.CreateResponse{App: app} })
	return s.wrote(r, rep, outcome, err)
}

// checked is what Knative's validation finds wrong, when it is the request's turn.
func (s *Service) checked(ctx context.Context, r *apiRequest, desired *servingv1.Service, app *appv1.App) ([]string, error) {
	slot, err := s.limits.checked.Acquire(ctx, request.Claim{Project: r.claimant(), Units: 1})
	if err != nil {
		return nil, s.waited(ctx, err, "too many apps are checked")
	}
	defer slot.Release()
	return s.check(desired, app, s.cfg.Deploy), nil
}

// tryDeploy is one try of deploy: it reads the Service and writes it.
func (s *Service) tryDeploy(ctx context.Context, id subjects.AppID, desired *servingv1.Service) (*live, subjects.Outcome, error) {
	found, err := s.find(ctx, id)
	if err != nil {
		return nil, "", err
	}
	if reason := found.foreign(); reason != "" {
		return nil, "", request.Errorf(subjects.CodeFailedPrecondition, "app: Knative Service %s, which app %s would have, %s", found.at, id, reason)
	}
	kservice.Place(desired, found.at)
	switch {
	case found.object == nil:
		now, err := s.kube.createService(ctx, desired)
		return now, subjects.OutcomeCreated, err
	case found.object.GetDeletionTimestamp() != nil:
		return nil, "", &terminatingError{found.at, found.object.GetFinalizers()}
	case found.ours && kservice.Unchanged(found.object.GetLabels(), found.object.GetAnnotations(), desired):
		return found, subjects.OutcomeUnchanged, nil
	}
	if err := kservice.Apply(desired, found.object.Object); err != nil {
		return nil, "", fmt.Errorf("change knative service %s: %w", found.at, err)
	}
	updated, err := s.kube.update(ctx, found.object)
	return &live{at: found.at, object: updated, ours: true}, subjects.OutcomeUpdated, err
}

// stop scales an app to zero and keeps it.
func (s *Service) stop(ctx context.Context, r *apiRequest) (*reply, error) {
	if err := r.decodeOnlyApp(&appv1.UpdateRequest{}); err != nil {
		return nil, err
	}
	var now *live
	sent := false
	outcome := subjects.OutcomeMissing
	err := s.write(ctx, func(ctx context.Context) (written bool, err error) {
		found, err := s.find(ctx, r.app)
		if err != nil || !found.ours {
			return sent || outcome == subjects.OutcomeStopped, err
		}
		was := found.object.GetResourceVersion()
		patched, err := s.kube.patch(ctx, found.at, kservice.StopPatch(was))
		if err != nil {
			sent = sent || unanswered(err)
			return sent || outcome == subjects.OutcomeStopped, client.IgnoreNotFound(err)
		}
		now = &live{at: found.at, object: patched, ours: true}
		// A second try finds the change of the first one.
		if patched.GetResourceVersion() != was || sent {
			outcome = subjects.OutcomeStopped
		} else if outcome == subjects.OutcomeMissing {
			outcome = subjects.OutcomeUnchanged
		}
		ready, _, _ := unstructured.NestedString(patched.Object, "status", "latestReadyRevisionName")
		if ready == "" {
			return true, nil
		}
		// Its pods would stay until Knative has drained the traffic.
		return true, client.IgnoreNotFound(s.removeRevision(ctx, found.at.Namespace, ready, patched.GetUID()))
	})
	if err != nil {
		return nil, err
	}
	if now == nil {
		rep, err := newReply(r.form, &appv1.UpdateResponse{})
		return s.wrote(r, rep, outcome, err)
	}
	rep, err := s.appNow(ctx, r, now, func(app *appv1.App) proto.Message { return &appv1.UpdateResponse{App: app} })
	return s.wrote(r, rep, outcome, err)
}

// removeRevision deletes a Revision of a Knative Service, but not one of another Service that has
// its name by now.
func (s *Service) removeRevision(ctx context.Context, namespace, name string, service types.UID) error {
	revision, err := s.kube.get(ctx, knative("revisions"), namespace, name)
	if err != nil || revision == nil {
		return err
	}
	if owner := revision.GetLabels()[kservice.LabelServiceUID]; owner != "" && owner != string(service) {
		return nil
	}
	return s.kube.remove(ctx, knative("revisions"), revision, false)
}

func (s *Service) remove(ctx context.Context, r *apiRequest) (*reply, error) {
	if err := r.decodeOnlyApp(&appv1.DeleteRequest{}); err != nil {
		return nil, err
	}
	var was *live
	err := s.write(ctx, func(ctx context.Context) (written bool, err error) {
		found, err := s.find(ctx, r.app)
		if err != nil || !found.ours {
			return was != nil, err
		}
		err = s.kube.remove(ctx, knative("services"), found.object, true)
		if err == nil || unanswered(err) {
			was = found
		}
		return was != nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return nil, err
	}
	rep, err := newReply(r.form, &appv1.DeleteResponse{})
	if was == nil || err != nil {
		return s.wrote(r, rep, subjects.OutcomeMissing, err)
	}
	s.awaitCache(ctx, func() bool {
		entry, ok := s.cache.App(r.app)
		return !ok || entry.Service.UID != was.object.GetUID()
	})
	rep.setVersion(was.object)
	return s.wrote(r, rep, subjects.OutcomeDeleted, nil)
}

// removeReplica deletes one pod of an app. Knative replaces it.
func (s *Service) removeReplica(ctx context.Context, r *apiRequest) (*reply, error) {
	body := &appv1.ReplicaIdentifier{}
	p, err := r.decodeApp(body)
	if err != nil {
		return nil, err
	}
	if len(validation.IsDNS1123Subdomain(body.GetName())) > 0 {
		p.AddValue("name", body.GetName(), "the name of a replica")
	}
	if err := invalid(p.Texts()); err != nil {
		return nil, err
	}
	outcome := subjects.OutcomeMissing
	err = s.write(ctx, func(ctx context.Context) (written bool, err error) {
		found, err := s.find(ctx, r.app)
		if err != nil {
			return outcome == subjects.OutcomeDeleted, err
		}
		pod, err := s.kube.get(ctx, core("pods"), found.at.Namespace, body.GetName())
		if err != nil || pod == nil {
			return outcome == subjects.OutcomeDeleted, err
		}
		if !found.owns(pod) {
			return false, request.Errorf(subjects.CodeNotFound, "name: %s: app %s has no such replica", kservice.Quote(body.GetName()), r.app)
		}
		err = s.kube.remove(ctx, core("pods"), pod, false)
		if err == nil || unanswered(err) {
			outcome = subjects.OutcomeDeleted
		}
		if apierrors.IsConflict(err) {
			return false, nil // another pod has its name
		}
		return outcome == subjects.OutcomeDeleted, client.IgnoreNotFound(err)
	})
	if err != nil {
		return nil, err
	}
	rep, err := newReply(r.form, &appv1.DeleteResponse{})
	return s.wrote(r, rep, outcome, err)
}

// unanswered reports whether a write that failed may have taken effect.
func unanswered(err error) bool {
	failed, ok := errors.AsType[*kubeError](err)
	return ok && failed.unavailable() && !failed.unwritten()
}

// wrote logs a write that succeeded and adds its outcome to the reply.
func (s *Service) wrote(r *apiRequest, rep *reply, outcome subjects.Outcome, err error) (*reply, error) {
	s.log.Info("app operation", zap.String("op", r.op), zap.Stringer("app", r.app), zap.String("outcome", string(outcome)))
	if err != nil {
		return nil, err
	}
	return rep.withOutcome(outcome), nil
}

// write tries until a try succeeds, or fails with an error that is not retriable. A try reports
// whether it, or one before it, may have written something.
func (s *Service) write(ctx context.Context, try func(context.Context) (written bool, err error)) error {
	if err := s.readable(); err != nil {
		return err
	}
	var last error
	written := false
	var unavailable time.Time // start of the present outage of Kubernetes
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstRetry), backoff.WithMaxInterval(slowestRetry), backoff.WithMaxElapsedTime(0))
	err := backoff.RetryNotify(func() error {
		began := time.Now()
		var err error
		if written, err = try(ctx); err == nil || ctx.Err() != nil {
			return err
		}
		last = err
		var failed *kubeError
		switch {
		case errors.Is(err, errNamespaceMade):
		case errors.As(err, &failed) && failed.changed():
			unavailable = time.Time{}
		case failed == nil || !failed.unavailable():
			return backoff.Permanent(err)
		case unavailable.IsZero():
			unavailable = began
			fallthrough
		default:
			if time.Since(unavailable) > unavailablePatience {
				return backoff.Permanent(err)
			}
		}
		return err
	}, backoff.WithContext(pause, ctx), func(error, time.Duration) { s.metrics.retries.Inc() })
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return s.late(ctx, last, written)
	}
	if failed, ok := errors.AsType[*kubeError](err); ok {
		return failed.end(written)
	}
	return err
}

// late is the answer to a write that did not end in time; last is the error of the last try that
// ended before.
func (s *Service) late(ctx context.Context, last error, written bool) error {
	failed, _ := errors.AsType[*kubeError](last)
	reason := ""
	if failed != nil {
		reason = ": " + failed.failure().Text
	}
	switch {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return request.Errorf(request.ErrShutdown.Code, "%s%s%s", request.ErrShutdown.Text, reason, ending(written))
	case failed == nil:
		reason = ": kubernetes has not answered"
	case failed.unavailable():
		return failed.end(written)
	}
	return errLate(s.timeouts.write, reason+ending(written))
}

// end is the answer to a write that is not tried again. While Kubernetes is unavailable, it is 504
// if something may have been written.
func (e *kubeError) end(written bool) *request.Error {
	failure := e.failure()
	if e.unavailable() {
		failure.Text += ending(written)
		if written {
			failure.Code = subjects.CodeDeadlineExceeded
		}
	}
	return failure
}

// ending says whether a write that failed may have taken effect.
func ending(written bool) string {
	if written {
		return mayBeWritten
	}
	return nothingWritten
}

// errLate is the answer to a request that takes too long.
func errLate(limit time.Duration, reason string) *request.Error {
	return request.Errorf(subjects.CodeDeadlineExceeded, "not done within %s%s", limit, reason)
}
