package kservice_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

func TestStatusWord(t *testing.T) {
	t.Parallel()
	condition := func(kind, status string) kservice.Condition { return kservice.Condition{Type: kind, Status: status} }
	for _, tc := range []struct {
		name       string
		stopped    string // the value of the label, "" for none
		conditions []kservice.Condition
		want       string
	}{
		{"no condition", "", nil, ""},
		{"ready", "", []kservice.Condition{condition("Ready", "True")}, "ACTIVE"},
		{"not ready", "", []kservice.Condition{condition("Ready", "False")}, "FAILED"},
		{"not known", "", []kservice.Condition{condition("Ready", "Unknown")}, "PENDING"},
		{"without a status", "", []kservice.Condition{condition("Ready", "")}, "PENDING"},
		{"in lower case", "", []kservice.Condition{condition("Ready", "true")}, "PENDING"},
		{"others alone", "", []kservice.Condition{condition("ConfigurationsReady", "True"), condition("RoutesReady", "True")}, ""},
		{"not the first condition", "", []kservice.Condition{condition("ConfigurationsReady", "True"), condition("Ready", "False")}, "FAILED"},
		{"two of them", "", []kservice.Condition{condition("Ready", "False"), condition("Ready", "True")}, "FAILED"},
		{"type in lower case", "", []kservice.Condition{condition("ready", "True")}, ""},
		{"stopped and ready", "true", []kservice.Condition{condition("Ready", "True")}, "STOPPED"},
		{"stopped without a condition", "true", nil, "STOPPED"},
		{"stopped in name only", "false", []kservice.Condition{condition("Ready", "True")}, "ACTIVE"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			svc := sampleService()
			svc.Status.Conditions = tc.conditions
			if tc.stopped != "" {
				svc.Labels[kservice.LabelStopped] = tc.stopped
			}
			if got := kservice.StatusWord(svc); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// checkStatusWord checks the word of a case of the corpus: against the object as it stands in the
// case, and against the statuses that Flyte gave it.
func checkStatusWord(t *testing.T, svc *kservice.Service, raw []byte, flytes *appv1.App) {
	t.Helper()
	var object struct {
		Metadata struct {
			Labels map[string]string `json:"labels"`
		} `json:"metadata"`
		Status struct {
			Conditions []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, c := range slices.Backward(object.Status.Conditions) {
		if c.Type != "Ready" {
			continue
		}
		switch c.Status {
		case "True":
			want = "ACTIVE"
		case "False":
			want = "FAILED"
		default:
			want = "PENDING"
		}
	}
	if object.Metadata.Labels["flyte.org/app-stopped"] == "true" {
		want = "STOPPED"
	}
	got := kservice.StatusWord(svc)
	if got != want {
		t.Errorf("status word: got %q, want %q", got, want)
	}
	if got == "" {
		return
	}
	flyte := appv1.Status_DeploymentStatus(appv1.Status_DeploymentStatus_value["DEPLOYMENT_STATUS_"+got])
	if !slices.ContainsFunc(flytes.GetStatus().GetConditions(), func(c *appv1.Condition) bool { return c.GetDeploymentStatus() == flyte }) {
		t.Errorf("status word: got %q, Flyte has %v", got, flytes.GetStatus().GetConditions())
	}
}
