package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func deployBody(image string) string {
	return fmt.Sprintf(`{"app": {"spec": {"container": {"image": "registry.example.com/%s", "ports": [{"containerPort": 8080}]}}}}`, image)
}

// 250 apps, page by page with the stock client: each comes once, in whichever list
// it belongs.
func TestListPages(t *testing.T) {
	t.Parallel()
	const all = 250
	w := sharedWorld(t)
	nc := w.connect(t)
	wanted := map[string][]string{}
	var deploys errgroup.Group
	deploys.SetLimit(8)
	for i := range all {
		id := subjects.AppID{Project: []string{"pages-a", "pages-b"}[i%2], Domain: []string{"one", "two", "three"}[i%3], Name: fmt.Sprintf("app%03d", i)}
		for _, list := range []string{"", "." + id.Project, "." + id.Project + "." + id.Domain} {
			wanted[list] = append(wanted[list], id.String())
		}
		subject := subjectOf(t, subjects.APIDeploy, id)
		deploys.Go(func() error {
			a, err := asks(t.Context(), nc, subject, deployBody("page:1"))
			again := false
			for ; err == nil && a.late(); again = true {
				a, err = asks(t.Context(), nc, subject, deployBody("page:1"))
			}
			if err == nil && a.outcome() != subjects.OutcomeCreated && (!again || a.outcome() != subjects.OutcomeUnchanged) {
				err = fmt.Errorf("%s: got outcome %q and %q", subject, a.outcome(), a.refused())
			}
			return err
		})
	}
	if err := deploys.Wait(); err != nil {
		t.Fatal(err)
	}
	for list := range wanted {
		slices.Sort(wanted[list])
	}
	eventually(t, "every app is listed", func() error {
		n := 0
		for _, project := range []string{"pages-a", "pages-b"} {
			a, err := asks(t.Context(), nc, "flyte.apps.api.list."+project, `{"request": {"limit": 1}, "includeTotalCount": true}`)
			if err != nil {
				return err
			}
			var page appv1.ListResponse
			a.message(t, &page)
			n += int(page.GetTotalCount())
		}
		if n != all {
			return fmt.Errorf("%d of %d", n, all)
		}
		return nil
	})
	for list, want := range wanted {
		var got []string
		token, pages := "", 0
		for first := true; first || token != ""; first = false {
			a := w.types(t, "flyte.apps.api.list"+list, fmt.Sprintf(`{"request": {"limit": 40, "token": %q, "sortBy": {"key": "name"},
				"filters": [{"field": "status_phase", "function": "VALUE_IN", "values": ["DEPLOYMENT_STATUS_ACTIVE", "DEPLOYMENT_STATUS_UNSPECIFIED"]}]}}`, token))
			var page appv1.ListResponse
			a.message(t, &page)
			if n := len(page.GetApps()); n > 40 || n < 40 && page.GetToken() != "" {
				t.Errorf("list%s: page %d has %d apps", list, pages, n)
			}
			for _, app := range page.GetApps() {
				if id := idOf(app); id.Project == "pages-a" || id.Project == "pages-b" || list != "" {
					got = append(got, id.String()) // other tests have apps, too
				}
			}
			token, pages = page.GetToken(), pages+1
		}
		name := func(id string) string { return id[strings.LastIndexByte(id, '/')+1:] }
		if !slices.IsSortedFunc(got, func(a, b string) int { return strings.Compare(name(b), name(a)) }) {
			t.Errorf("list%s: got %s, want it sorted by name, descending", list, got)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("list%s: got %d apps, want %d, on %d pages: %s", list, len(got), len(want), pages, got)
		}
	}
}

func idOf(app *appv1.App) subjects.AppID {
	id := app.GetMetadata().GetId()
	return subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
}
