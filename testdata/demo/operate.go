package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// operates asks appbridge for a change, as any NATS client would, and returns the
// Service as it is then; nil when it is gone.
func (t *tour) operates(ctx context.Context, k *testenv.Cluster, op subjects.APIOp, svc *servingv1.Service, body proto.Message) (*servingv1.Service, error) {
	app, err := testenv.AppOf(svc)
	if err != nil {
		return nil, err
	}
	answer, err := ask(ctx, t.events.conn, op, app.ID(), body)
	if err != nil {
		return nil, err
	}
	t.out.line(fmt.Sprintf("              %s: %s", subjects.HeaderOutcome, answer.Header.Get(subjects.HeaderOutcome)))
	if op == subjects.APIDelete {
		return nil, nil
	}
	now := &servingv1.Service{}
	return now, k.Client.Get(ctx, client.ObjectKeyFromObject(svc), now)
}

// ask makes a request for an app operation.
func ask(ctx context.Context, conn *nats.Conn, op subjects.APIOp, id subjects.AppID, body proto.Message) (*nats.Msg, error) {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return nil, err
	}
	subject, err := names.API(op, id)
	if err != nil {
		return nil, err
	}
	data, form, err := appv1.Encode(body, subjects.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	answer, err := conn.RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Data: data, Header: nats.Header{subjects.HeaderContentType: {form}}})
	if err == nil && answer.Header.Get(subjects.HeaderServiceError) != "" {
		err = errors.New(answer.Header.Get(subjects.HeaderServiceError))
	}
	if err != nil {
		return nil, fmt.Errorf("request to %s: %w", subject, err)
	}
	return answer, nil
}
