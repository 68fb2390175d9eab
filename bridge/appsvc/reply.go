package appsvc

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// replyMargin is room for the subject and the headers of an answer.
	replyMargin = 4 << 10
	resultOK    = "ok"
	resultGone  = "gone" // nobody waited any more
)

// reply is the answer to a request that went well.
type reply struct {
	data    []byte
	header  nats.Header
	outcome subjects.Outcome // of a write
}

// newReply encodes an answer in the form of its request. Whether it fits into a
// message is seen when it is sent.
func newReply(form string, m proto.Message) (*reply, error) {
	data, got, err := appv1.Encode(m, form)
	if err != nil {
		return nil, err
	}
	return &reply{data: data, header: nats.Header{subjects.HeaderContentType: {got}}}, nil
}

// appReply is an answer that holds one app, whose version its headers name. When
// it does not fit into a message it goes without the spec, and a header marks it.
func (s *Service) appReply(form string, app *appv1.App, svc *kservice.Service, wrap func(*appv1.App) proto.Message) (*reply, error) {
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
	rep.name(svc)
	return rep, nil
}

// name puts the version of a Knative Service into the headers.
func (r *reply) name(svc *kservice.Service) {
	r.header.Set(subjects.HeaderUID, string(svc.UID))
	r.header.Set(subjects.HeaderResourceVersion, svc.ResourceVersion)
	r.header.Set(subjects.HeaderGeneration, strconv.FormatInt(svc.Generation, 10))
	r.header.Set(subjects.HeaderNamespace, svc.Namespace)
}

// came sets the outcome of a write.
func (r *reply) came(to subjects.Outcome) *reply {
	r.outcome = to
	r.header.Set(subjects.HeaderOutcome, string(to))
	return r
}

// result is what the metrics call an answer.
func (r *reply) result() string {
	if r.outcome != "" {
		return string(r.outcome)
	}
	return resultOK
}

// room is how many bytes the body of an answer may have.
func (s *Service) room() int { return int(s.nc.MaxPayload()) - replyMargin }

// failureOf is the answer to a request that failed, or whose answer no message can hold;
// nil when there is an answer.
func (s *Service) failureOf(op operation, subject string, rep *reply, err error) *request.Error {
	if err == nil {
		if size := len(rep.data); size > s.room() {
			return request.Errorf(subjects.CodeInternal, "the answer has %d bytes, and max_payload of the NATS server lets %d through", size, s.room())
		}
		return nil
	}
	var failure *request.Error
	if errors.As(err, &failure) {
		return failure
	}
	if errors.Is(err, context.Canceled) {
		return errClosing("")
	}
	s.log.Error("a request failed", zap.String("op", op.name), zap.String("subject", subject), zap.Error(err))
	return request.Errorf(subjects.CodeInternal, "internal error, see the log of the service")
}

// refuse answers from within the handler of an endpoint, which counts errors.
func (s *Service) refuse(op operation, msg micro.Request, err error, asked time.Time) {
	failure := s.failureOf(op, msg.Subject(), nil, err)
	sent := msg.Error(failure.Code.HeaderValue(), request.OneLine(failure.Text), request.Body(failure.Text))
	s.answered(op, msg.Reply(), failure.Code.String(), sent, asked)
}

// publish answers when the handler has returned, after which its message is not to be used.
func (s *Service) publish(op operation, r *apiRequest, rep *reply, err error, asked time.Time) {
	if errors.Is(err, errGone) {
		s.metrics.ended(op.name, resultGone, asked)
		return
	}
	msg := &nats.Msg{Subject: r.reply}
	var result string
	if failure := s.failureOf(op, r.subject, rep, err); failure != nil {
		result = failure.Code.String()
		msg.Data = request.Body(failure.Text)
		msg.Header = nats.Header{subjects.HeaderServiceError: {request.OneLine(failure.Text)}, subjects.HeaderServiceErrorCode: {failure.Code.HeaderValue()}}
	} else {
		result = rep.result()
		msg.Data, msg.Header = rep.data, rep.header
	}
	s.answered(op, r.reply, result, s.nc.PublishMsg(msg), asked)
}

// answered counts a request, and notes an answer that was not sent: its requester
// tries again, and every operation may be requested twice.
func (s *Service) answered(op operation, target, result string, sent error, asked time.Time) {
	if sent != nil {
		s.log.Warn("cannot answer a request", zap.String("op", op.name), zap.String("reply", target), zap.String("result", result), zap.Error(sent))
	}
	s.metrics.ended(op.name, result, asked)
}
