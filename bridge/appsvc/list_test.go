package appsvc_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/testenv"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// page asks for one page of a list in JSON.
func (w *world) page(subject string, request *appv1.ListRequest) (*appv1.ListResponse, *nats.Msg) {
	w.t.Helper()
	answer := w.json(subject, request)
	return read(w, answer, &appv1.ListResponse{}), answer
}

// all asks for page after page; between is called between two of them.
func (w *world) all(subject string, limit uint32, between func()) []string {
	w.t.Helper()
	var names []string
	token := ""
	for range 10_000 {
		page, _ := w.page(subject, &appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: limit, Token: token}})
		if limit > 0 && len(page.GetApps()) > int(limit) {
			w.t.Fatalf("%d apps on a page of %d", len(page.GetApps()), limit)
		}
		names = append(names, listed(page)...)
		if token = page.GetToken(); token == "" {
			return names
		}
		if len(page.GetApps()) == 0 {
			w.t.Fatal("an empty page has a token")
		}
		if between != nil {
			between()
		}
	}
	w.t.Fatal("the list has no end")
	return nil
}

// listed are the apps on a page, as org/project/domain/name.
func listed(page *appv1.ListResponse) []string {
	var names []string
	for _, app := range page.GetApps() {
		id := app.GetMetadata().GetId()
		names = append(names, strings.Join([]string{id.GetOrg(), id.GetProject(), id.GetDomain(), id.GetName()}, "/"))
	}
	return names
}

func numbered(i int) subjects.AppID {
	return subjects.AppID{Project: "p" + strconv.Itoa(i%3), Domain: "d" + strconv.Itoa(i%2), Name: fmt.Sprintf("app-%03d", i)}
}

// Apps come and go between the pages: one that is there all the time is on
// exactly one of them.
func TestListPages(t *testing.T) {
	t.Parallel()
	const stay, limit = 250, 7
	cache := &memory{}
	w := serve(t, func(s *setup) { s.cache = cache })
	var want []string
	for i := range stay {
		cache.add(cached(t, numbered(i)))
		id := numbered(i)
		want = append(want, "flyte/"+id.String())
	}
	slices.Sort(want)
	come := 0
	var guests []subjects.AppID
	for i := range 60 {
		guest := subjects.AppID{Project: "p" + strconv.Itoa(i%3), Domain: "d" + strconv.Itoa(i%2), Name: fmt.Sprintf("app-%03d-guest", i*4)}
		guests = append(guests, guest)
		if i%2 == 0 {
			cache.add(cached(t, guest))
		}
	}
	got := w.all(w.listSubject("", ""), limit, func() {
		if guest := guests[come%len(guests)]; come%2 == 0 {
			cache.remove(guest)
		} else {
			cache.add(cached(t, guest))
		}
		come++
	})
	if !slices.IsSortedFunc(got, byObject) {
		t.Error("the pages are not in order")
	}
	slices.Sort(got)
	if twice := len(got) - len(slices.Compact(slices.Clone(got))); twice != 0 {
		t.Errorf("%d apps are listed twice", twice)
	}
	got = slices.DeleteFunc(got, func(name string) bool { return strings.HasSuffix(name, "-guest") })
	if !slices.Equal(got, want) {
		t.Errorf("got %d apps, want %d: %q", len(got), len(want), got)
	}
	if come < stay/limit-1 {
		t.Errorf("the list was read in %d steps, want one for each page", come)
	}
}

// The app that a token names is gone: the list goes on behind its place.
func TestListGoesOnBehindWhatIsGone(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	for i := range 6 {
		cache.add(cached(t, subjects.AppID{Project: "p", Domain: "d", Name: "app-" + strconv.Itoa(i)}))
	}
	w := serve(t, func(s *setup) { s.cache = cache })
	subject := w.listSubject("p", "d")
	first, _ := w.page(subject, &appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: 3}})
	for i := 1; i < 4; i++ {
		cache.remove(subjects.AppID{Project: "p", Domain: "d", Name: "app-" + strconv.Itoa(i)})
	}
	second, _ := w.page(subject, &appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: 3, Token: first.GetToken()}})
	if got, want := listed(second), []string{"flyte/p/d/app-4", "flyte/p/d/app-5"}; !slices.Equal(got, want) || second.GetToken() != "" {
		t.Errorf("got %q and the token %q, want %q", got, second.GetToken(), want)
	}
}

func TestListSelects(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	org := func(org string) func(*testenv.App) { return func(a *testenv.App) { a.Org = org } }
	cache.add(cached(t, subjects.AppID{Project: "a", Domain: "dev", Name: "one"}, org("acme")))
	cache.add(cached(t, subjects.AppID{Project: "a", Domain: "prod", Name: "one"}, org("")))
	cache.add(cached(t, subjects.AppID{Project: "b", Domain: "dev", Name: "one"}, org("acme")))
	cache.add(cached(t, subjects.AppID{Project: "c.d", Domain: "dev", Name: "one"}, org("acme")))
	w := serve(t, func(s *setup) { s.cache = cache })
	list := func(r *appv1.ListRequest) *appv1.ListRequest {
		r.IncludeTotalCount = true
		return r
	}
	ofProject := func(org, project, domain string) *appv1.ListRequest {
		return &appv1.ListRequest{FilterBy: &appv1.ListRequest_Project{Project: &appv1.ProjectIdentifier{Organization: org, Name: project, Domain: domain}}}
	}
	ofCluster := func(org, name string) *appv1.ListRequest {
		return &appv1.ListRequest{FilterBy: &appv1.ListRequest_ClusterId{ClusterId: &appv1.ClusterIdentifier{Organization: org, Name: name}}}
	}
	ofOrg := func(org string) *appv1.ListRequest {
		return &appv1.ListRequest{FilterBy: &appv1.ListRequest_Org{Org: org}}
	}
	for _, test := range []struct {
		name            string
		project, domain string
		request         *appv1.ListRequest
		want            []string
	}{
		{"all", "", "", &appv1.ListRequest{}, []string{"acme/a/dev/one", "flyte/a/prod/one", "acme/b/dev/one", "acme/c.d/dev/one"}},
		{"project", "a", "", &appv1.ListRequest{}, []string{"acme/a/dev/one", "flyte/a/prod/one"}},
		{"domain", "a", "dev", &appv1.ListRequest{}, []string{"acme/a/dev/one"}},
		{"escaped", "c.d", "dev", &appv1.ListRequest{}, []string{"acme/c.d/dev/one"}},
		{"nothing", "x", "", &appv1.ListRequest{}, nil},
		{"org", "", "", ofOrg("acme"), []string{"acme/a/dev/one", "acme/b/dev/one", "acme/c.d/dev/one"}},
		{"default org", "", "", ofOrg("flyte"), []string{"flyte/a/prod/one"}},
		{"org and project", "a", "", ofOrg("acme"), []string{"acme/a/dev/one"}},
		{"project in the body", "", "", ofProject("", "a", ""), []string{"acme/a/dev/one", "flyte/a/prod/one"}},
		{"project and domain in the body", "", "", ofProject("", "a", "prod"), []string{"flyte/a/prod/one"}},
		{"the same project in the body", "a", "", ofProject("acme", "a", "dev"), []string{"acme/a/dev/one"}},
		{"cluster", "", "", ofCluster("", clusterName), []string{"acme/a/dev/one", "flyte/a/prod/one", "acme/b/dev/one", "acme/c.d/dev/one"}},
		{"cluster of an org", "", "", ofCluster("acme", ""), []string{"acme/a/dev/one", "acme/b/dev/one", "acme/c.d/dev/one"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			page, _ := w.page(w.listSubject(test.project, test.domain), list(test.request))
			if got := listed(page); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if got := page.GetTotalCount(); got != int64(len(test.want)) {
				t.Errorf("got the total %d, want %d", got, len(test.want))
			}
		})
	}
	for _, test := range []struct {
		name            string
		project, domain string
		request         *appv1.ListRequest
		says            []string
	}{
		{"another project", "a", "", ofProject("", "b", ""), []string{`project.name: "b": the subject says "a"`}},
		{"another domain", "a", "dev", ofProject("", "a", "prod"), []string{`project.domain: "prod": the subject says "dev"`}},
		{"another cluster", "", "", ofCluster("", "other"), []string{`clusterId.name: "other": this is cluster "test"`}},
		{"raw filters", "", "", &appv1.ListRequest{Request: &appv1.CommonListRequest{RawFilters: []string{"x"}}}, []string{"request.rawFilters: "}},
		{"artifact", "", "", &appv1.ListRequest{FilterBy: &appv1.ListRequest_Artifact{Artifact: &appv1.ConsumedArtifactFilter{Project: "a", Domain: "dev", Name: "model"}}}, []string{"artifact: not known here"}},
		{"no token", "", "", &appv1.ListRequest{Request: &appv1.CommonListRequest{Token: "nonsense"}}, []string{`request.token: "nonsense": want the token of the page before`}},
		{"an empty token", "a", "", &appv1.ListRequest{Request: &appv1.CommonListRequest{Token: "e30"}}, []string{`request.token: "e30"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.refused(w.json(w.listSubject(test.project, test.domain), test.request), subjects.CodeInvalidArgument, test.says...)
		})
	}

	// A token is one of its list alone; the total counts all pages.
	for _, test := range []struct {
		name, project, domain, org string
	}{{"project", "a", "", ""}, {"domain", "a", "dev", ""}, {"org", "", "", "acme"}} {
		t.Run("token of another list: "+test.name, func(t *testing.T) {
			page, _ := w.page(w.listSubject("", ""), list(&appv1.ListRequest{Request: &appv1.CommonListRequest{Limit: 1}}))
			if page.GetToken() == "" || page.GetTotalCount() != 4 {
				t.Fatalf("got the token %q, and %d apps in total", page.GetToken(), page.GetTotalCount())
			}
			request := &appv1.ListRequest{Request: &appv1.CommonListRequest{Token: page.GetToken()}}
			next, _ := w.page(w.listSubject("", ""), list(proto.CloneOf(request)))
			if len(next.GetApps()) != 3 || next.GetTotalCount() != 4 {
				t.Errorf("the next page has %d apps, of %d", len(next.GetApps()), next.GetTotalCount())
			}
			if test.org != "" {
				request.FilterBy = &appv1.ListRequest_Org{Org: test.org}
			}
			w.refused(w.json(w.listSubject(test.project, test.domain), request), subjects.CodeInvalidArgument, "request.token")
		})
	}
}

// sized gives an app a spec of some size.
func sized(bytes int) func(*testenv.App) {
	return func(a *testenv.App) { a.Args = []string{strings.Repeat("x", bytes)} }
}

// A list that does not fit into a message comes in pages, in either form.
func TestListSize(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	const small, one = 30, 2 << 10
	for i := range small {
		cache.add(cached(t, subjects.AppID{Project: "p", Domain: "d", Name: fmt.Sprintf("app-%02d", i)}, sized(one)))
	}
	cache.add(cached(t, subjects.AppID{Project: "p", Domain: "d", Name: "app-09-large"}, sized(100<<10)))
	w := serve(t, func(s *setup) { s.cache, s.maxPayload = cache, 16<<10 })
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		t.Run(form, func(t *testing.T) {
			var names []string
			request := &appv1.ListRequest{Request: &appv1.CommonListRequest{}}
			pages, truncated := 0, 0
			for {
				body, _, err := appv1.Encode(request, form)
				if err != nil {
					t.Fatal(err)
				}
				answer := w.ask(w.listSubject("p", "d"), form, body)
				page := read(w, answer, &appv1.ListResponse{})
				if got := answer.Header.Get(subjects.HeaderContentType); got != form {
					t.Errorf("got the form %q, want %q", got, form)
				}
				lost := 0
				for _, app := range page.GetApps() {
					if app.GetSpec() == nil {
						lost++
						if app.GetMetadata().GetId().GetName() != "app-09-large" || app.GetStatus() == nil {
							t.Errorf("without spec: %v", app)
						}
					}
				}
				want := ""
				if truncated += lost; lost > 0 {
					want = subjects.TruncatedSpec
				}
				if got := answer.Header.Get(subjects.HeaderTruncated); got != want {
					t.Errorf("%s: got %q, want %q", subjects.HeaderTruncated, got, want)
				}
				names = append(names, listed(page)...)
				pages++
				if request.Request.Token = page.GetToken(); page.GetToken() == "" {
					break
				}
			}
			if len(names) != small+1 || !slices.IsSortedFunc(names, byObject) || len(slices.Compact(names)) != small+1 || truncated != 1 {
				t.Errorf("got %d apps, %d of them without spec: %q", len(names), truncated, names)
			}
			// 12 KiB without the room for a token hold four of them, and the large one takes a page at most.
			if pages > small/4+2 {
				t.Errorf("%d pages", pages)
			}
		})
	}
	answer := w.ask(w.subject(subjects.APIGet, subjects.AppID{Project: "p", Domain: "d", Name: "app-09-large"}), "", nil)
	if app := read(w, answer, &appv1.GetResponse{}).GetApp(); app.GetSpec() != nil || answer.Header.Get(subjects.HeaderTruncated) != subjects.TruncatedSpec {
		t.Errorf("get: got %v with %v", app, answer.Header)
	}
}

// byObject compares apps, as listed has them, by the names of their Knative Services.
func byObject(a, b string) int {
	name := func(listed string) string {
		parts := strings.SplitN(listed, "/", 4)
		return kservice.Name(subjects.AppID{Project: parts[1], Domain: parts[2], Name: parts[3]})
	}
	return strings.Compare(name(a), name(b))
}

// An app that JSON cannot express makes the answer a binary one, which says so, and
// begins a page of its own, since what is on the one before was counted as JSON.
func TestListNotJSON(t *testing.T) {
	t.Parallel()
	cache := &memory{}
	odd := subjects.AppID{Project: "p", Domain: "d", Name: "odd"}
	nan := &structpb.Struct{Fields: map[string]*structpb.Value{"x": structpb.NewNumberValue(math.NaN())}}
	cache.add(cached(t, subjects.AppID{Project: "p", Domain: "d", Name: "even"}))
	cache.add(cached(t, odd, func(a *testenv.App) {
		a.Spec = &appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: nan}}}
	}))
	w := serve(t, func(s *setup) { s.cache = cache })
	page, first := w.page(w.listSubject("", ""), &appv1.ListRequest{})
	if got, want := listed(page), []string{"flyte/p/d/even"}; !slices.Equal(got, want) || first.Header.Get(subjects.HeaderContentType) != subjects.ContentTypeJSON {
		t.Fatalf("got %q with %v, want %q in JSON", got, first.Header, want)
	}
	page, second := w.page(w.listSubject("", ""), &appv1.ListRequest{Request: &appv1.CommonListRequest{Token: page.GetToken()}})
	get := w.ask(w.subject(subjects.APIGet, odd), "", nil)
	for _, answer := range []*nats.Msg{second, get} {
		if got := answer.Header.Get(subjects.HeaderContentType); got != subjects.ContentTypeProtobuf {
			t.Errorf("got the form %q, want %q", got, subjects.ContentTypeProtobuf)
		}
	}
	if got, want := listed(page), []string{"flyte/p/d/odd"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	value := page.GetApps()[0].GetSpec().GetPod().GetPodSpec().GetFields()["x"].GetNumberValue()
	if !math.IsNaN(value) {
		t.Errorf("got %v, want what JSON cannot express", value)
	}
}

// The names of these two fold to one. The pods that an app leaves behind are nobody's: not the
// next app's of that name, and not its own, because nothing proves that they were.
func TestReplicasOfNoApp(t *testing.T) {
	t.Parallel()
	one, other := subjects.AppID{Project: "b-c", Domain: "dev", Name: "a"}, subjects.AppID{Project: "c", Domain: "dev", Name: "a-b"}
	cache := &memory{}
	for name, uid := range map[string]string{"left": "uid-of-one", "own": "uid-of-other"} {
		cache.pods = append(cache.pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "flyte", Name: name, Labels: map[string]string{kservice.LabelService: kservice.Name(one), kservice.LabelServiceUID: uid}},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	w := serve(t, func(s *setup) { s.cache = cache })
	replicas := func(id subjects.AppID) []string {
		var names []string
		for _, r := range read(w, w.ask(w.subject(subjects.APIReplicas, id), "", nil), &appv1.ReplicaList{}).GetItems() {
			names = append(names, r.GetMetadata().GetId().GetName())
		}
		return names
	}
	if got := replicas(one); len(got) != 0 {
		t.Errorf("got %q of an app that is gone", got)
	}
	svc := cached(t, other)
	svc.UID = "uid-of-other"
	cache.add(svc)
	if got := replicas(one); len(got) != 0 {
		t.Errorf("got %q, which are another app's", got)
	}
	if got := replicas(other); !slices.Equal(got, []string{"own"}) {
		t.Errorf("got %q, want its own", got)
	}
}

// A list of more than a leafnode lets through has pages, and its connection lasts.
func TestListOverLeafnode(t *testing.T) {
	t.Parallel()
	const most, apps = 64 << 10, 400
	hub, leaf, intact := suite.Leafnode(t, most)
	cache := &memory{}
	w := serve(t, func(s *setup) {
		s.cache, s.url, s.clientURL, s.cfg.MaxReply = cache, hub.ClientURL(), leaf.ClientURL(), most
	})
	for i := range apps {
		cache.add(cached(t, numbered(i)))
	}
	answer, err := w.nc.Request(w.listSubject("", ""), nil, patience)
	if err != nil {
		t.Fatalf("list: %v; %v", err, intact())
	}
	if n := answer.Size() - len(answer.Subject) - len(answer.Reply); n > most || n < most/2 {
		t.Errorf("the first page has %d bytes", n)
	}
	if got := len(w.all(w.listSubject("", ""), 0, nil)); got != apps {
		t.Errorf("got %d apps, want %d", got, apps)
	}
	if err := intact(); err != nil {
		t.Error(err)
	}
}
