package appsvc

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// replyMargin is reserved for the subject and the headers of an answer.
	replyMargin = 4 << 10
	resultOK    = "ok"
	resultGone  = "gone" // the requester disconnected
)

// reply is the answer to a request that succeeded.
type reply struct {
	data    []byte
	header  nats.Header
	outcome subjects.Outcome // of a write
}

// newReply encodes an answer in the form of its request. It may be too large for a message.
func newReply(form string, m proto.Message) (*reply, error) {
	data, got, err := appv1.Encode(m, form)
	if err != nil {
		return nil, err
	}
	return &reply{data: data, header: nats.Header{subjects.HeaderContentType: {got}}}, nil
}

// appReply is an answer with one app, whose version is in the headers. If it does not fit into a
// message, it has no spec, and a header marks it.
func (s *Service) appReply(form string, app *appv1.App, svc metav1.Object, wrap func(*appv1.App) proto.Message) (*reply, error) {
	rep, err := newReply(form, wrap(app))
	if err != nil {
		return nil, err
	}
	if len(rep.data) > s.room() {
		app.Spec = nil
		if rep, err = newReply(form, wrap(app)); err != nil {
			return nil, err
		}
		rep.header.Set(subjects.HeaderTruncated, subjects.TruncatedSpec)
	}
	rep.setVersion(svc)
	return rep, nil
}

func (r *reply) setVersion(svc metav1.Object) {
	r.header.Set(subjects.HeaderUID, string(svc.GetUID()))
	r.header.Set(subjects.HeaderResourceVersion, svc.GetResourceVersion())
	r.header.Set(subjects.HeaderGeneration, strconv.FormatInt(svc.GetGeneration(), 10))
	r.header.Set(subjects.HeaderNamespace, svc.GetNamespace())
}

func (r *reply) withOutcome(outcome subjects.Outcome) *reply {
	r.outcome = outcome
	r.header.Set(subjects.HeaderOutcome, string(outcome))
	return r
}

// room is the maximum size of the body of an answer.
func (s *Service) room() int { return request.MaxReply(s.nc, s.cfg.MaxReply) - replyMargin }

// failureOf is the answer to a request that failed, or whose reply is too large. nil: rep is the
// answer.
func (s *Service) failureOf(op operation, subject string, rep *reply, err error) *request.Error {
	if err == nil {
		if size := len(rep.data); size > s.room() {
			return request.Errorf(subjects.CodeInternal, "the answer has %d bytes, and max-reply or max_payload of the NATS server lets %d through", size, s.room())
		}
		return nil
	}
	if failure, ok := errors.AsType[*request.Error](err); ok {
		return failure
	}
	if errors.Is(err, context.Canceled) {
		return request.ErrShutdown
	}
	s.log.Error("request failed", zap.String("op", op.name), zap.String("subject", subject), zap.Error(err))
	return request.Errorf(subjects.CodeInternal, "internal error, see the log of the service")
}

// refuse answers a request that begin did not admit.
func (s *Service) refuse(op operation, r *request.Request, err error) {
	failure := s.failureOf(op, r.Subject, nil, err)
	s.answered(op, r, failure.Code.String(), r.Respond(failure))
}

func (s *Service) publish(op operation, r *apiRequest, rep *reply, err error) {
	if errors.Is(err, errGone) {
		s.metrics.ended(op.name, resultGone, r.Arrived)
		return
	}
	if failure := s.failureOf(op, r.Subject, rep, err); failure != nil {
		s.answered(op, r.Request, failure.Code.String(), s.nc.PublishMsg(request.ErrorMessage(r.Reply, failure)))
		return
	}
	s.answered(op, r.Request, cmp.Or(string(rep.outcome), resultOK), s.nc.PublishMsg(&nats.Msg{Subject: r.Reply, Data: rep.data, Header: rep.header}))
}

// answered counts a request, and logs an answer that was not sent: the requester repeats the
// request, and every operation may be repeated.
func (s *Service) answered(op operation, r *request.Request, result string, err error) {
	if err != nil {
		s.log.Warn("cannot send the answer to a request", zap.String("op", op.name), zap.String("reply", r.Reply), zap.String("result", result), zap.Error(err))
	}
	s.metrics.ended(op.name, result, r.Arrived)
}
