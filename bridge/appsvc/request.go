package appsvc

import (
	"cmp"
	"fmt"
	"mime"
	"strings"

	"github.com/nats-io/nats.go/micro"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/request"
	requests "github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// shownValue is how much of a wrong value an error repeats.
	shownValue = 64
	// maxBody is how long a request that changes an app may be. What Kubernetes takes of an
	// app is half of that.
	maxBody = 512 << 10
	// maxReadBody is the same of other requests.
	maxReadBody = 64 << 10
)

// apiRequest is what somebody asks for.
type apiRequest struct {
	op, subject     string
	reply           string         // where the answer goes
	app             subjects.AppID // not of a list
	project, domain string         // of a list; empty: all
	body            []byte
	form            string         // content type of body and answer
	turn            *requests.Turn // of a read
}

// parse reads what stands around the body. Whether writes are turned on is asked
// first: then it does not matter what is wrong with the rest.
func (s *Service) parse(op operation, msg micro.Request) (*apiRequest, error) {
	if op.write && !s.cfg.EnableWrites {
		return nil, request.Errorf(subjects.CodePermissionDenied,
			"%s is turned off here: start appbridge serve with --enable-writes (APPBRIDGE_ENABLE_WRITES=true, or enable-writes: true in its file)", op.name)
	}
	r := &apiRequest{op: op.name, subject: msg.Subject(), reply: msg.Reply(), body: msg.Data()}
	var err error
	if op.name == opList {
		r.project, r.domain, err = s.names.ParseAPIList(msg.Subject())
	} else {
		_, r.app, err = s.names.ParseAPI(msg.Subject())
	}
	if err != nil {
		return nil, request.Errorf(subjects.CodeInvalidArgument, "%v", err)
	}
	most := maxReadBody
	if op.write {
		most = maxBody
	}
	if len(r.body) > most {
		return nil, request.Errorf(subjects.CodeInvalidArgument, "body: %d bytes: want at most %d", len(r.body), most)
	}
	r.form, err = formOf(msg.Headers())
	return r, err
}

// claimant is the project whose share of a limit the request takes; empty for a list of
// everything.
func (r *apiRequest) claimant() string { return cmp.Or(r.app.Project, r.project) }

// formOf reads the content type, whose name a person may write in any case.
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
			subjects.HeaderContentType, shown(written), subjects.ContentTypeJSON, subjects.ContentTypeProtobuf)
	}
	if form == subjects.ContentTypeProtobuf {
		return subjects.ContentTypeProtobuf, nil
	}
	return subjects.ContentTypeJSON, nil // form would keep the header
}

// decode reads the body into m; no body leaves it empty.
func (r *apiRequest) decode(m proto.Message) error {
	if len(r.body) == 0 {
		return nil
	}
	name := m.ProtoReflect().Descriptor().Name()
	if r.form == subjects.ContentTypeProtobuf {
		if proto.Unmarshal(r.body, m) != nil {
			return request.Errorf(subjects.CodeInvalidArgument, "body: %d bytes: want a %s in binary protobuf, or %s: %s",
				len(r.body), name, subjects.HeaderContentType, subjects.ContentTypeJSON)
		}
		return nil
	}
	if err := protojson.Unmarshal(r.body, m); err != nil {
		reason := strings.TrimSpace(strings.TrimPrefix(request.OneLine(err.Error()), "proto:"))
		return request.Errorf(subjects.CodeInvalidArgument, "body: %s: want a %s in JSON", reason, name)
	}
	return nil
}

// problems collects what is wrong with the fields of a request.
type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

func (p *problems) err() error {
	if len(*p) == 0 {
		return nil
	}
	return request.Errorf(subjects.CodeInvalidArgument, "%s", strings.Join(*p, "; "))
}

// agree checks that what a body says of the app is what the subject says; path is
// the identifier's in the body. What it does not say, it leaves to the subject.
func (p *problems) agree(path string, id *appv1.Identifier, want subjects.AppID) {
	p.same(path+".project", id.GetProject(), want.Project)
	p.same(path+".domain", id.GetDomain(), want.Domain)
	p.same(path+".name", id.GetName(), want.Name)
}

func (p *problems) same(path, got, want string) {
	if got != "" && got != want {
		p.add("%s: %s: the subject says %s", path, shown(got), shown(want))
	}
}

// shown is a value as an error repeats it.
func shown(value string) string {
	if len(value) > shownValue {
		return fmt.Sprintf("%q…", value[:shownValue])
	}
	return fmt.Sprintf("%q", value)
}
