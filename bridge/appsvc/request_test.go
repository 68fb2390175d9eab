package appsvc_test

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// allOps are the operations on one app, with the message that each takes.
func allOps() map[subjects.APIOp]proto.Message {
	return map[subjects.APIOp]proto.Message{
		subjects.APIGet: &appv1.GetRequest{}, subjects.APIReplicas: &appv1.GetRequest{}, subjects.APIIngress: &appv1.GetRequest{},
		subjects.APIDeploy: &appv1.CreateRequest{}, subjects.APIStop: &appv1.UpdateRequest{},
		subjects.APIDelete: &appv1.DeleteRequest{}, subjects.APIDeleteReplica: &appv1.ReplicaIdentifier{},
	}
}

// writeOps are those that change apps.
func writeOps() []subjects.APIOp {
	return []subjects.APIOp{subjects.APIDeploy, subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica}
}

// roundTripper is a Kubernetes that is a function.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// untouchable is a Kubernetes that is not to be asked anything.
func untouchable(t testing.TB) *rest.Config {
	return &rest.Config{Host: "http://127.0.0.1:1", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		t.Errorf("Kubernetes was asked: %s %s", r.Method, r.URL.Path)
		return nil, http.ErrServerClosed
	})}
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) { s.cache, s.kube = cache, untouchable(t) })
	request := &appv1.GetRequest{Identifier: &appv1.GetRequest_AppId{AppId: identifier(checkout)}}
	text, err := protojson.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := proto.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	get := w.subject(subjects.APIGet, checkout)
	for _, test := range []struct {
		name, form string
		body       []byte
		want       string
	}{
		{"none", "", text, subjects.ContentTypeJSON},
		{"none, no body", "", nil, subjects.ContentTypeJSON},
		{"json", subjects.ContentTypeJSON, text, subjects.ContentTypeJSON},
		{"json with a charset", "application/json; charset=utf-8", text, subjects.ContentTypeJSON},
		{"json in capitals", "Application/JSON", text, subjects.ContentTypeJSON},
		{"binary", subjects.ContentTypeProtobuf, wire, subjects.ContentTypeProtobuf},
		{"binary with a parameter", "application/protobuf;proto=x", wire, subjects.ContentTypeProtobuf},
		{"binary, no body", subjects.ContentTypeProtobuf, nil, subjects.ContentTypeProtobuf},
	} {
		t.Run(test.name, func(t *testing.T) {
			answer := w.ask(get, test.form, test.body)
			if got := answer.Header.Get(subjects.HeaderContentType); got != test.want {
				t.Errorf("got the form %q, want %q", got, test.want)
			}
			app := read(w, answer, &appv1.GetResponse{}).GetApp()
			if got := app.GetMetadata().GetId(); got.GetName() != checkout.Name || app.GetSpec() == nil {
				t.Errorf("got %v", app)
			}
		})
	}
	lower, err := w.nc.RequestMsg(&nats.Msg{
		Subject: get, Data: wire, Header: nats.Header{strings.ToLower(subjects.HeaderContentType): {subjects.ContentTypeProtobuf}},
	}, patience)
	if err != nil {
		t.Fatal(err)
	}
	if got := lower.Header.Get(subjects.HeaderContentType); got != subjects.ContentTypeProtobuf {
		t.Errorf("a header in small letters: got the form %q, want %q", got, subjects.ContentTypeProtobuf)
	}
	for _, form := range []string{"text/plain", "application/x-protobuf", "json", ";", "application/json; charset", strings.Repeat("x", 5000), "\x1b[31m"} {
		for op := range allOps() {
			w.refused(w.ask(w.subject(op, checkout), form, text), subjects.CodeInvalidArgument,
				subjects.HeaderContentType, "want application/json or application/protobuf")
		}
	}
	w.refused(w.ask(w.listSubject("", ""), "text/plain", nil), subjects.CodeInvalidArgument, `"text/plain"`)
	// What is sent in the other form does not pass for empty.
	w.refused(w.ask(get, subjects.ContentTypeProtobuf, text), subjects.CodeInvalidArgument, "want a GetRequest in binary protobuf")
	w.refused(w.ask(get, subjects.ContentTypeJSON, wire), subjects.CodeInvalidArgument, "want a GetRequest in JSON")
}

// Nothing that is wrong with a body gets as far as Kubernetes.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.kube = untouchable(t) })
	list := w.listSubject("", "")
	for op, m := range allOps() {
		name := string(m.ProtoReflect().Descriptor().Name())
		for _, test := range []struct {
			name, form, body string
			says             []string
		}{
			{"unknown field", "", `{"nonsense": 1}`, []string{"nonsense", name}},
			{"unknown field in another", "", `{"app": {"nonsense": 1}, "appId": {"nonsense": 1}}`, []string{"unknown field", name}},
			{"no JSON", "", "\x00\x01\xff", []string{name}},
			{"half of it", "", `{"app": {`, []string{name}},
			{"two of them", "", `{}{}`, []string{name}},
			{"a list", "", `[]`, []string{name}},
			{"a number", "", `1`, []string{name}},
			{"lines and escapes", "", "{\"\x1b[31m\r\n\": \"\x7f\"}", []string{name}},
			{"no protobuf", subjects.ContentTypeProtobuf, "\xff\xff\xff", []string{"3 bytes", name}},
			{"cut off", subjects.ContentTypeProtobuf, "\x0a\x05ab", []string{name}},
			{"as long as may be", "", strings.Repeat("x", 64<<10), []string{name}},
			{"as deep as may be", "", strings.Repeat(`{"app":`, 9_000), []string{name}},
		} {
			t.Run(string(op)+", "+test.name, func(t *testing.T) {
				w.refused(w.ask(w.subject(op, checkout), test.form, []byte(test.body)), subjects.CodeInvalidArgument, test.says...)
			})
		}
	}
	w.refused(w.ask(list, "", []byte(`{"nonsense": 1}`)), subjects.CodeInvalidArgument, "nonsense", "ListRequest")
	w.refused(w.ask(w.subject(subjects.APIDeploy, checkout), "", nil), subjects.CodeInvalidArgument, "app.spec")
	for _, name := range []string{"", "a/b", "..", "UPPER", strings.Repeat("x", 300), "a\nb"} {
		answer := w.json(w.subject(subjects.APIDeleteReplica, checkout), &appv1.ReplicaIdentifier{Name: name})
		w.refused(answer, subjects.CodeInvalidArgument, "name: ", "want the name of a replica")
	}
}

// What the body says of the app has to be what the subject says.
func TestIdentity(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) { s.cache, s.kube = cache, untouchable(t) })
	get := func(id *appv1.Identifier) proto.Message {
		return &appv1.GetRequest{Identifier: &appv1.GetRequest_AppId{AppId: id}}
	}
	app := func(id *appv1.Identifier) *appv1.App { return &appv1.App{Metadata: &appv1.Meta{Id: id}} }
	for op, test := range map[subjects.APIOp]struct {
		path string
		body func(*appv1.Identifier) proto.Message
	}{
		subjects.APIGet:      {"appId", get},
		subjects.APIReplicas: {"appId", get},
		subjects.APIIngress:  {"appId", get},
		subjects.APIDeploy: {"app.metadata.id", func(id *appv1.Identifier) proto.Message {
			return &appv1.CreateRequest{App: app(id)}
		}},
		subjects.APIStop: {"app.metadata.id", func(id *appv1.Identifier) proto.Message {
			return &appv1.UpdateRequest{App: app(id)}
		}},
		subjects.APIDelete:        {"appId", func(id *appv1.Identifier) proto.Message { return &appv1.DeleteRequest{AppId: id} }},
		subjects.APIDeleteReplica: {"appId", func(id *appv1.Identifier) proto.Message { return &appv1.ReplicaIdentifier{AppId: id, Name: "one"} }},
	} {
		for _, wrong := range []struct {
			field, other, want string
			id                 *appv1.Identifier
		}{
			{"project", "SHOP", "shop", &appv1.Identifier{Project: "SHOP"}},
			{"domain", "dev", "production", &appv1.Identifier{Domain: "dev", Name: "checkout"}},
			{"name", "check", "checkout", &appv1.Identifier{Name: "check", Project: "shop", Domain: "production"}},
		} {
			t.Run(string(op)+" "+wrong.field, func(t *testing.T) {
				w.refused(w.json(w.subject(op, checkout), test.body(wrong.id)), subjects.CodeInvalidArgument,
					test.path+"."+wrong.field+`: "`+wrong.other+`": the subject says "`+wrong.want+`"`)
			})
		}
	}
	for _, body := range []proto.Message{nil, &appv1.GetRequest{}, get(&appv1.Identifier{}), get(&appv1.Identifier{Name: "checkout"}), get(identifier(checkout))} {
		read(w, w.json(w.subject(subjects.APIGet, checkout), body), &appv1.GetResponse{})
	}

	byURL := func(url string) proto.Message {
		return &appv1.GetRequest{Identifier: &appv1.GetRequest_Ingress{Ingress: &appv1.Ingress{PublicUrl: url}}}
	}
	const url = "https://checkout-shop-production.apps.example.com"
	read(w, w.json(w.subject(subjects.APIGet, checkout), byURL(url)), &appv1.GetResponse{})
	w.refused(w.json(w.subject(subjects.APIGet, checkout), byURL("https://other.example.com")), subjects.CodeInvalidArgument,
		`ingress.publicUrl: "https://other.example.com"`, url)
}

// Subjects that package subjects would not build are matched all the same.
func TestMalformedSubjects(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.kube = untouchable(t) })
	good := subjects.AppID{Project: "PROJECT", Domain: "DOMAIN", Name: "NAME"}
	for op := range allOps() {
		subject := w.subject(op, good)
		for _, token := range []string{"=2e", "=zz", "=", "a=41", "caf\u00e9", "a/b"} {
			for _, part := range []string{"PROJECT", "DOMAIN", "NAME"} {
				w.refused(w.ask(strings.Replace(subject, part, token, 1), "", nil), subjects.CodeInvalidArgument)
			}
		}
	}
	list := w.listSubject("PROJECT", "DOMAIN")
	w.refused(w.ask(strings.Replace(list, "PROJECT", "=2e", 1), "", nil), subjects.CodeInvalidArgument)
	w.refused(w.ask(strings.Replace(list, "DOMAIN", "=2e", 1), "", nil), subjects.CodeInvalidArgument)
	// An id that a subject may hold, and Kubernetes may not.
	odd := subjects.AppID{Project: "a.b", Domain: "*", Name: ">\x00\n"}
	w.refused(w.ask(w.subject(subjects.APIGet, odd), "", nil), subjects.CodeNotFound, "a.b/*/>")
	w.refused(w.json(w.subject(subjects.APIDeploy, odd), deployment("registry.example.com/a:1")), subjects.CodeInvalidArgument, "app.metadata.id.name")
}

// deployment asks for an app with an image.
func deployment(image string) *appv1.CreateRequest {
	return &appv1.CreateRequest{App: &appv1.App{Spec: spec(image)}}
}

func spec(image string) *appv1.Spec {
	return &appv1.Spec{AppPayload: &appv1.Spec_Container{Container: &appv1.Container{
		Image: image, Ports: []*appv1.ContainerPort{{ContainerPort: 8080}},
	}}}
}

// A spec that no Knative Service can hold.
func TestSpecTooLarge(t *testing.T) {
	t.Parallel()
	w := serve(t, func(s *setup) { s.kube = untouchable(t) })
	large := deployment("registry.example.com/a:1")
	large.GetApp().GetSpec().GetContainer().Args = []string{strings.Repeat("x", 300<<10)}
	w.refused(w.json(w.subject(subjects.APIDeploy, checkout), large), subjects.CodeInvalidArgument, "app.spec: takes", "want at most 262144")
}

// Without writes it does not matter what is asked.
func TestWritesOff(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	cache.add(cached(t, checkout))
	w := serve(t, func(s *setup) { s.cfg.EnableWrites, s.cache, s.kube = false, cache, untouchable(t) })
	for _, op := range writeOps() {
		for _, body := range []string{"", "{}", "\xff", `{"app": {}}`} {
			w.refused(w.ask(w.subject(op, checkout), "", []byte(body)), subjects.CodePermissionDenied, string(op), "--enable-writes")
			w.refused(w.ask(w.subject(op, checkout), "text/plain", []byte(body)), subjects.CodePermissionDenied)
		}
	}
	for _, op := range []subjects.APIOp{subjects.APIGet, subjects.APIReplicas, subjects.APIIngress} {
		if code := w.ask(w.subject(op, checkout), "", nil).Header.Get(subjects.HeaderServiceErrorCode); code != "" {
			t.Errorf("%s: got %s", op, code)
		}
	}
	info, err := w.info()
	if err != nil || info.Metadata["writes"] != "false" {
		t.Errorf("got the metadata %v, %v", info.Metadata, err)
	}
}

// Any body gets an answer that has its form.
func FuzzRequest(f *testing.F) {
	cache := &memory{}
	cache.add(cached(f, checkout))
	refusing := &rest.Config{Host: "http://127.0.0.1:1", Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: http.StatusForbidden, Header: http.Header{"Content-Type": {"application/json"}}, Body: http.NoBody,
		}, nil
	})}
	w := serve(f, func(s *setup) { s.cache, s.kube = cache, refusing })
	var all []string
	var bodies []proto.Message
	for _, op := range append(writeOps(), subjects.APIGet, subjects.APIReplicas, subjects.APIIngress) {
		all = append(all, w.subject(op, checkout))
		bodies = append(bodies, allOps()[op])
	}
	all = append(all, w.listSubject("", ""), w.listSubject("shop", ""), w.listSubject("shop", "production"))
	forms := []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf}
	bodies = append(bodies, deployment("registry.example.com/a:1"),
		&appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: 1, Token: "e30"}, FilterBy: &appv1.ListRequest_Org{Org: "acme"}},
		&appv1.ReplicaIdentifier{AppId: identifier(checkout), Name: "one"})
	for i := range all {
		for _, body := range bodies {
			text, err := protojson.Marshal(body)
			if err != nil {
				f.Fatal(err)
			}
			wire, err := proto.Marshal(body)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(i, 0, text)
			f.Add(i, 1, wire)
		}
		f.Add(i, 0, []byte(`{"request":{"token":"\u0000"}}`))
		f.Add(i, 1, bytes.Repeat([]byte{0x0a}, 100))
	}
	f.Fuzz(func(t *testing.T, subject, form int, body []byte) {
		if len(body) > 1<<19 {
			return
		}
		answer, err := w.nc.RequestMsg(&nats.Msg{
			Subject: all[uint(subject)%uint(len(all))], Data: body,
			Header: nats.Header{subjects.HeaderContentType: {forms[uint(form)%uint(len(forms))]}},
		}, patience)
		if err != nil {
			t.Fatal(err)
		}
		if answer.Header.Get(subjects.HeaderServiceErrorCode) == "" {
			if answer.Header.Get(subjects.HeaderContentType) == "" {
				t.Errorf("an answer without a form: %q", answer.Data)
			}
			return
		}
		if _, err := subjects.ParseCode(answer.Header.Get(subjects.HeaderServiceErrorCode)); err != nil {
			t.Error(err)
		}
		if err := wellFormed(answer); err != nil {
			t.Error(err)
		}
	})
}
