package e2e_test

import (
	"errors"
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The annotation makes an app, for both services: its labels for project and domain may be missing, and
// its Knative Service may have any name.
func TestIdentity(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	bare := testenv.App{
		Project: "shop", Domain: "identity", Name: "bare", ObjectName: "any-name",
		Labels: map[string]string{kservice.LabelProject: "", kservice.LabelDomain: ""},
	}
	if _, err := w.Create(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	nc := w.connect(t)
	logs, err := names(t).Logs(subjects.LogGet, bare.ID())
	if err != nil {
		t.Fatal(err)
	}
	for service, subject := range map[string]string{"operations": subjectOf(t, subjects.APIGet, bare.ID()), "logs": logs} {
		eventually(t, service+" have the app", func() error {
			a, err := asks(t.Context(), nc, subject, "")
			if text := a.refused(); err == nil && text != "" {
				err = errors.New(text)
			}
			return err
		})
	}
}
