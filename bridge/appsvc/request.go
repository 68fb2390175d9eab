package appsvc

import (
	"cmp"
	"fmt"
	"mime"
	"strings"

	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// maxWriteBody and maxReadBody bound the bodies of requests in bytes. The spec of an app in
	// Kubernetes may have half as many.
	maxWriteBody = 512 << 10
	maxReadBody  = 64 << 10
)

// apiRequest is a request for an operation.
type apiRequest struct {
	*request.Request
	op              string
	app             subjects.AppID // not of a list
	project, domain string         // of a list; empty: all
	form            string         // content type of body and answer
}

// maxBody bounds the body of a request. Where writes are off, begin refuses them whatever their
// body.
func (s *Service) maxBody(op operation) int {
	switch {
	case !op.write:
		return maxReadBody
	case s.cfg.EnableWrites:
		return maxWriteBody
	default:
		return 0
	}
}

func (s *Service) parse(op operation, msg *request.Request) (*apiRequest, error) {
	if op.write && !s.cfg.EnableWrites {
		return nil, request.Errorf(subjects.CodePermissionDenied,
			"%s is turned off here: start appbridge serve with --enable-writes (APPBRIDGE_ENABLE_WRITES=true, or enable-writes: true in its file)", op.name)
	}
	r := &apiRequest{Request: msg, op: op.name}
	var err error
	if op.name == opList {
		r.project, r.domain, err = s.names.ParseAPIList(msg.Subject)
	} else {
		_, r.app, err = s.names.ParseAPI(msg.Subject)
	}
	if err != nil {
		return nil, request.Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	r.form, err = formOf(msg.Headers())
	return r, err
}

// claimant is the project that the request counts for, empty for a list of everything.
func (r *apiRequest) claimant() string { return cmp.Or(r.app.Project, r.project) }

// formOf reads the content type. People write the name of its header in any case.
func formOf(headers micro.Headers) (string, error) {
	written := headers.Get(subjects.HeaderContentType)
	for name, values := range headers {
		if written == "" && strings.EqualFold(name, subjects.HeaderContentType) && len(values) > 0 {
			written = values[0]
		}
	}
	if written == "" {
		return subjects.ContentTypeJSON, nil
	}
	form, _, err := mime.ParseMediaType(written)
	if err != nil || form != subjects.ContentTypeJSON && form != subjects.ContentTypeProtobuf {
		return "", request.Errorf(subjects.CodeInvalidArgument, "%s: %s: want %s or %s",
			subjects.HeaderContentType, kservice.Quote(written), subjects.ContentTypeJSON, subjects.ContentTypeProtobuf)
	}
	return strings.Clone(form), nil // form would keep the header
}

// decode reads the body into m; no body leaves it empty.
func (r *apiRequest) decode(m proto.Message) error {
	if len(r.Body) == 0 {
		return nil
	}
	name := m.ProtoReflect().Descriptor().Name()
	if r.form == subjects.ContentTypeProtobuf {
		if proto.Unmarshal(r.Body, m) != nil {
			return request.Errorf(subjects.CodeInvalidArgument, "body: %d bytes: want a %s in binary protobuf, or %s: %s",
				len(r.Body), name, subjects.HeaderContentType, subjects.ContentTypeJSON)
		}
		return nil
	}
	if err := protojson.Unmarshal(r.Body, m); err != nil {
		reason := strings.TrimSpace(strings.TrimPrefix(request.OneLine(err.Error()), "proto:"))
		return request.Errorf(subjects.CodeInvalidArgument, "body: %s: want a %s in JSON", reason, name)
	}
	return nil
}

// decodeApp reads the body into m, and checks that the app in it is that of the subject.
func (r *apiRequest) decodeApp(m proto.Message) (*kservice.Problems, error) {
	if err := r.decode(m); err != nil {
		return nil, err
	}
	p := &kservice.Problems{}
	switch m := m.(type) {
	case interface{ GetAppId() *appv1.Identifier }:
		checkID(p, "appId", m.GetAppId(), r.app)
	case interface{ GetApp() *appv1.App }:
		checkID(p, "app.metadata.id", m.GetApp().GetMetadata().GetId(), r.app)
	}
	return p, nil
}

// decodeOnlyApp reads a body whose only content is the app.
func (r *apiRequest) decodeOnlyApp(m proto.Message) error {
	p, err := r.decodeApp(m)
	if err != nil {
		return err
	}
	return invalid(p.Texts())
}

// invalid is the error of a request with these problems, nil if there are none.
func invalid(problems []string) error {
	if len(problems) == 0 {
		return nil
	}
	return request.Errorf(subjects.CodeInvalidArgument, "%s", strings.Join(problems, "; "))
}

// checkID checks that the app in a body is that of the subject. path is the identifier's in the
// body. Parts that are missing there follow from the subject.
func checkID(p *kservice.Problems, path string, id *appv1.Identifier, want subjects.AppID) {
	checkPart(p, path+".project", id.GetProject(), want.Project)
	checkPart(p, path+".domain", id.GetDomain(), want.Domain)
	checkPart(p, path+".name", id.GetName(), want.Name)
}

func checkPart(p *kservice.Problems, path, got, want string) {
	if got != "" && got != want {
		p.Add(path, fmt.Sprintf("%s: the subject says %s", kservice.Quote(got), kservice.Quote(want)))
	}
}
