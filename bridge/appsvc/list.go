package appsvc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// listQuery says which apps are wanted.
type listQuery struct {
	project, domain, org string // empty: any
	limit                int    // 0: as many as fit
	after                *cursor
	count                bool
}

// cursor is what a token says: the list that it is of, and the Knative Service of
// its last app so far. The list goes on behind that, whatever has come and gone in between.
type cursor struct {
	List      string `json:"l"`
	Namespace string `json:"s"`
	Name      string `json:"n"`
}

// token is what asks for what follows a Service.
func (q *listQuery) token(last *kservice.Service) (string, error) {
	text, err := json.Marshal(&cursor{q.name(), last.Namespace, last.Name})
	return base64.RawURLEncoding.EncodeToString(text), err
}

// name tells lists apart, in few bytes.
func (q *listQuery) name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", q.project, q.domain, q.org))
	return hex.EncodeToString(sum[:8])
}

// follows tells whether a Service comes behind the cursor.
func (c *cursor) follows(svc *kservice.Service) bool {
	return cmp.Or(cmp.Compare(svc.Namespace, c.Namespace), cmp.Compare(svc.Name, c.Name)) > 0
}

// query reads what a list request asks for.
func (s *Service) query(r *request) (*listQuery, error) {
	body := &appv1.ListRequest{}
	if err := r.decode(body); err != nil {
		return nil, err
	}
	q := &listQuery{project: r.project, domain: r.domain, org: body.GetOrg(), limit: int(body.GetRequest().GetLimit()), count: body.GetIncludeTotalCount()}
	var p problems
	narrow := func(path, wanted string, to *string) {
		if *to == "" {
			*to = wanted
		}
		p.same(path, wanted, *to)
	}
	if of := body.GetProject(); of != nil {
		q.org = of.GetOrganization()
		narrow("project.name", of.GetName(), &q.project)
		narrow("project.domain", of.GetDomain(), &q.domain)
	}
	if of := body.GetClusterId(); of != nil {
		q.org = of.GetOrganization()
		if of.GetName() != "" && of.GetName() != s.cfg.ClusterName {
			p.add("clusterId.name: %s: this is cluster %q", shown(of.GetName()), s.cfg.ClusterName)
		}
	}
	for field, given := range map[string]bool{
		"request.filters":      len(body.GetRequest().GetFilters()) > 0,
		"request.rawFilters":   len(body.GetRequest().GetRawFilters()) > 0,
		"request.sortBy":       body.GetRequest().GetSortBy() != nil, //nolint:staticcheck // it is deprecated, and may be sent all the same
		"request.sortByFields": len(body.GetRequest().GetSortByFields()) > 0,
	} {
		if given {
			p.add("%s: not known here: apps are selected by org, clusterId or project and come in the order of their Knative Services", field)
		}
	}
	slices.Sort(p)
	if token := body.GetRequest().GetToken(); token != "" {
		q.after = q.read(token)
		if q.after == nil {
			p.add("request.token: %s: want the token of the page before, of the same list", shown(token))
		}
	}
	return q, p.err()
}

// read reads a token, nil when it is none of this list.
func (q *listQuery) read(token string) *cursor {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return nil
	}
	c := &cursor{}
	if json.Unmarshal(text, c) != nil || c.List != q.name() {
		return nil
	}
	return c
}

// list answers with one page of apps.
func (s *Service) list(_ context.Context, r *request) (*reply, error) {
	q, err := s.query(r)
	if err != nil {
		return nil, err
	}
	if err := s.readable(); err != nil {
		return nil, err
	}
	found, revisions := s.selected(q)
	page := &page{form: r.form, room: s.room()}
	if q.count {
		page.answer.TotalCount = int64(len(found))
	}
	if q.after != nil {
		found = slices.DeleteFunc(found, func(svc *kservice.Service) bool { return !q.after.follows(svc) })
	}
	for i, svc := range found {
		app, err := kservice.ConvertCounting(svc, revisions[svc], s.cfg.App)
		if err != nil {
			return nil, err
		}
		if q.limit > 0 && i == q.limit || !page.add(app) {
			if page.answer.Token, err = q.token(found[i-1]); err != nil {
				return nil, err
			}
			break
		}
	}
	rep, err := newReply(page.form, &page.answer)
	if err != nil {
		return nil, err
	}
	if page.truncated {
		rep.header.Set(subjects.HeaderTruncated, subjects.TruncatedSpec)
	}
	return rep, nil
}

// selected are the Services that a query is about, in the order of a list, with
// their Revisions.
func (s *Service) selected(q *listQuery) ([]*kservice.Service, map[*kservice.Service]*kservice.Revision) {
	entries := s.cache.Apps()
	services := make([]*kservice.Service, 0, len(entries))
	revisions := make(map[*kservice.Service]*kservice.Revision, len(entries))
	for _, entry := range entries {
		if q.org == "" || kservice.Org(entry.Service) == q.org {
			services = append(services, entry.Service)
			revisions[entry.Service] = entry.Revision
		}
	}
	return kservice.List(services, q.project, q.domain), revisions
}

// page is a list as far as it fits into a message.
type page struct {
	form      string
	room      int
	answer    appv1.ListResponse
	size      int
	truncated bool // an app lacks its spec
}

// itemOverhead is what an item takes in a list beside itself.
const itemOverhead = 8

// add puts an app on the page unless it is full. An app that would not even fit
// on a page of its own loses its spec, and is left out if that is not enough. One that JSON cannot express begins a page of its
// own, which is binary.
func (p *page) add(app *appv1.App) bool {
	first := len(p.answer.Apps) == 0
	size, ok := p.sizeOf(app)
	if !ok {
		if !first {
			return false
		}
		p.form = subjects.ContentTypeProtobuf
		size, _ = p.sizeOf(app)
	}
	if p.size+size > p.room {
		if !first {
			return false
		}
		app.Spec = nil
		p.truncated = true
		if size, _ = p.sizeOf(app); size > p.room {
			return true
		}
	}
	p.size += size
	p.answer.Apps = append(p.answer.Apps, app)
	return true
}

// sizeOf is what an app takes on the page; false if it has no form that the page has.
func (p *page) sizeOf(app *appv1.App) (int, bool) {
	if p.form != subjects.ContentTypeJSON {
		return proto.Size(app) + itemOverhead, true
	}
	text, form, err := appv1.Encode(app, p.form)
	return len(text) + itemOverhead, err == nil && form == p.form
}
