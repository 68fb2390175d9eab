package appsvc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// readable returns an error while the cache is not synced.
func (s *Service) readable() error {
	if err := s.cache.Synced(); err != nil {
		return request.Errorf(subjects.CodeUnavailable, "%s", request.PlainText(err))
	}
	return nil
}

// named reads the body of a request whose only content is the app. It returns the identifier, nil
// if there is none.
func (s *Service) named(r *apiRequest) (*appv1.Identifier, error) {
	body := &appv1.GetRequest{}
	p, err := r.decodeApp(body)
	if err != nil {
		return nil, err
	}
	if url := body.GetIngress().GetPublicUrl(); url != "" {
		if want := kservice.PublicURL(r.app, s.cfg.App); url != want {
			p.Add("ingress.publicUrl", fmt.Sprintf("%s: the app that the subject names is at %s", kservice.Quote(url), kservice.Quote(want)))
		}
	}
	return body.GetAppId(), invalid(p.Texts())
}

func (s *Service) get(_ context.Context, r *apiRequest) (*reply, error) {
	if _, err := s.named(r); err != nil {
		return nil, err
	}
	if err := s.readable(); err != nil {
		return nil, err
	}
	entry, ok := s.cache.App(r.app)
	if !ok {
		return nil, request.Errorf(subjects.CodeNotFound, "app: no app %s", r.app)
	}
	app, err := entry.convert()
	if err != nil {
		return nil, err
	}
	return s.appReply(r.form, app, entry.Service.GetObjectMeta(), func(app *appv1.App) proto.Message { return &appv1.GetResponse{App: app} })
}

// ingress answers with the address of an app. It follows from the id, so the app need not exist.
func (s *Service) ingress(_ context.Context, r *apiRequest) (*reply, error) {
	if _, err := s.named(r); err != nil {
		return nil, err
	}
	return newReply(r.form, &appv1.Ingress{PublicUrl: kservice.PublicURL(r.app, s.cfg.App)})
}

// replicas answers with the replicas of an app. A deleted app has none, since nothing proves the
// owner of pods that are left.
func (s *Service) replicas(_ context.Context, r *apiRequest) (*reply, error) {
	requested, err := s.named(r)
	if err != nil {
		return nil, err
	}
	if err := s.readable(); err != nil {
		return nil, err
	}
	entry, ok := s.cache.App(r.app)
	if !ok {
		return newReply(r.form, &appv1.ReplicaList{})
	}
	svc, org := entry.Service, requested.GetOrg()
	if requested == nil { // else the replicas have that of the request
		org = svc.Org
	}
	pods, err := s.cache.Pods(svc.Namespace, svc.Name)
	var denied *kubeapi.DeniedError
	switch {
	case errors.As(err, &denied):
		return nil, request.Errorf(subjects.CodeInternal, "kubernetes: %s", denied.Text)
	case err != nil:
		return nil, request.Errorf(subjects.CodeUnavailable, "replicas: %s", request.PlainText(err))
	}
	id := &appv1.Identifier{Org: org, Project: r.app.Project, Domain: r.app.Domain, Name: r.app.Name}
	return newReply(r.form, &appv1.ReplicaList{Items: kservice.Replicas(id, svc.Object(), pods)})
}
