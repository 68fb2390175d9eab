package knative_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// conditionProblems holds the conditions of every event against those that etcd held of that
// version, by a mapping of its own: the audit knows that of the bridge. Conditions are compared
// as texts: status, reason, message and time. The reason is that of the header, which the audit holds
// against the pods.
func conditionProblems(in audit.Input) (problems []string) {
	objects := map[string]*unstructured.Unstructured{}
	for _, c := range in.Changes {
		if c.Kind == audit.KindService && !c.Deleted {
			objects[string(c.UID)+"@"+c.ResourceVersion] = c.Object
		}
	}
	for _, m := range in.Events {
		e, err := decodeEvent(in.Subjects, m)
		if err != nil || e.kind == subjects.Deleted {
			continue // the audit reports what it cannot read
		}
		version := m.Header.Get(subjects.HeaderUID) + "@" + m.Header.Get(subjects.HeaderResourceVersion)
		object := objects[version]
		if object == nil {
			continue // the audit reports what etcd never held
		}
		word, want := conditionsOf(object, m.Header.Get(subjects.HeaderReason))
		var got []string
		for _, c := range e.app.GetStatus().GetConditions() {
			got = append(got, conditionText(c))
		}
		if !slices.Equal(got, want) {
			problems = append(problems, fmt.Sprintf("sequence %d: the conditions are\n    %s\n  want\n    %s", m.Sequence, strings.Join(got, "\n    "), strings.Join(want, "\n    ")))
		}
		if got := e.status(); got != word {
			problems = append(problems, fmt.Sprintf("sequence %d: the status is %q, want %q", m.Sequence, got, word))
		}
	}
	return problems
}

func conditionText(c *appv1.Condition) string {
	status := strings.TrimPrefix(c.GetDeploymentStatus().String(), "DEPLOYMENT_STATUS_")
	if c.GetSubstate() != 0 {
		status += " " + c.GetSubstate().String()
	}
	return fmt.Sprintf("%s %q since %s", status, c.GetMessage(), c.GetLastTransitionTime().AsTime().Format(time.RFC3339Nano))
}

// conditionsOf is what the conditions of an object come to, the first of type Ready with a reason, and
// the status in one word.
func conditionsOf(object *unstructured.Unstructured, reason string) (word string, texts []string) {
	raw, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	var conditions []map[string]string
	ready := ""
	for _, item := range raw {
		condition := map[string]string{}
		fields, _ := item.(map[string]any)
		for key, value := range fields {
			condition[key], _ = value.(string)
		}
		if condition["type"] == "Ready" && ready == "" {
			ready = condition["status"]
		}
		conditions = append(conditions, condition)
	}
	if object.GetLabels()["flyte.org/app-stopped"] == "true" {
		at := object.GetCreationTimestamp().UTC().Format(time.RFC3339)
		for _, c := range conditions {
			if c["type"] == "Ready" {
				at = c["lastTransitionTime"]
				break
			}
		}
		return "STOPPED", []string{fmt.Sprintf("STOPPED %q since %s", "App scaled to zero", at)}
	}
	for _, c := range conditions {
		status := ""
		switch {
		case c["type"] == "RoutesReady" && c["status"] == "Unknown":
		case c["status"] == "True" && ready == "True":
			status = "ACTIVE"
		case c["status"] == "True":
			status = "DEPLOYING"
		case c["status"] == "False" && ready == "False":
			status = "FAILED"
		case c["status"] == "Unknown":
			status = "PENDING"
		}
		if c["type"] == "Ready" && reason != "" {
			status, reason = status+" "+reason, ""
		}
		if status != "" {
			texts = append(texts, fmt.Sprintf("%s %q since %s", status, conditionMessage(c), c["lastTransitionTime"]))
		}
	}
	return map[string]string{"True": "ACTIVE", "False": "FAILED", "Unknown": "PENDING"}[ready], texts
}

func conditionMessage(c map[string]string) string {
	switch {
	case c["reason"] != "":
		return c["reason"] + ": " + c["message"]
	case c["message"] != "":
		return c["message"]
	}
	return map[string]string{
		"ConfigurationsReady": "Configuration is ready", "RoutesReady": "Routes are ready", "Ready": "Service is ready",
	}[c["type"]]
}

func versionOf(text string) (int64, error) { return strconv.ParseInt(text, 10, 64) }
