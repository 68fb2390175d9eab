package appsvc

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// statusPrefix is what Flyte's name of a deployment status has before the word for it.
const statusPrefix = "DEPLOYMENT_STATUS_"

// statuses are the words of the deployment statuses that a list has. nil: all.
type statuses map[string]bool

func (s statuses) has(svc *app.CachedService) bool { return s == nil || s[statusOf(svc)] }

// statusOf is the word of the Flyte-Status header, UNSPECIFIED where there is none.
func statusOf(svc *app.CachedService) string {
	return cmp.Or(svc.Status, strings.TrimPrefix(appv1.Status_DEPLOYMENT_STATUS_UNSPECIFIED.String(), statusPrefix))
}

// readFilters reads the filters of a request, all of which select. As in Flyte, values are names of
// deployment statuses; their words do as well.
func readFilters(p *kservice.Problems, filters []*appv1.Filter) (selected statuses) {
	for i, f := range filters {
		path := fmt.Sprintf("request.filters[%d].", i)
		if f.GetField() != byStatus {
			p.AddValue(path+"field", f.GetField(), byStatus)
			continue
		}
		values := len(f.GetValues())
		switch {
		case f.GetFunction() != appv1.Filter_EQUAL && f.GetFunction() != appv1.Filter_VALUE_IN:
			p.AddValue(path+"function", f.GetFunction().String(), "EQUAL or VALUE_IN")
		case len(f.GetIntValues()) > 0:
			p.Add(path+"intValues", "not known here: want the names of deployment statuses in values")
		case values == 0, values > 1 && f.GetFunction() == appv1.Filter_EQUAL:
			p.Add(path+"values", fmt.Sprintf("has %d values, want one, or VALUE_IN and at least one", values))
		}
		wanted := statuses{}
		for j, value := range f.GetValues() {
			word := strings.TrimPrefix(value, statusPrefix)
			if _, ok := appv1.Status_DeploymentStatus_value[statusPrefix+word]; !ok {
				p.AddValue(fmt.Sprintf("%svalues[%d]", path, j), value, "a deployment status, for example "+appv1.Status_DEPLOYMENT_STATUS_ACTIVE.String())
			}
			wanted[word] = true
		}
		if selected != nil {
			maps.DeleteFunc(wanted, func(word string, _ bool) bool { return !selected[word] })
		}
		selected = wanted
	}
	return selected
}
