package kservice

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// ConditionReady is the type of the condition that sums up a Service or a Revision.
const ConditionReady = string(servingv1.ServiceConditionReady)

// Types and statuses of Knative's conditions.
const (
	conditionRoutes         = string(servingv1.ServiceConditionRoutesReady)
	conditionConfigurations = string(servingv1.ServiceConditionConfigurationsReady)

	conditionTrue    = string(corev1.ConditionTrue)
	conditionFalse   = string(corev1.ConditionFalse)
	conditionUnknown = string(corev1.ConditionUnknown)
)

func status(id subjects.AppID, svc *Service, replicas uint32, cfg Config) *appv1.Status {
	if Stopped(svc) {
		return &appv1.Status{Conditions: []*appv1.Condition{{
			DeploymentStatus:   appv1.Status_DEPLOYMENT_STATUS_STOPPED,
			Message:            "App scaled to zero",
			LastTransitionTime: fallbackTime(svc),
		}}}
	}
	return &appv1.Status{
		Conditions:      conditions(svc),
		Ingress:         ingress(id, cfg),
		CurrentReplicas: replicas,
		K8SMetadata:     &appv1.K8SMetadata{Namespace: svc.Namespace},
		CreatedAt:       timestamp(svc.CreationTimestamp.Time),
	}
}

// StatusWord is the state of an app in one word: STOPPED for a stopped app, else what the first
// condition of type Ready maps to in the App's conditions (ACTIVE, PENDING or FAILED), and the
// empty string without that condition. It is pure.
func StatusWord(svc *Service) string {
	mapped := appv1.Status_DEPLOYMENT_STATUS_STOPPED
	if !Stopped(svc) {
		ready := readyCondition(svc)
		if ready == nil {
			return ""
		}
		mapped, _ = deploymentStatus(ready, ready.Status) // which maps every Ready condition
	}
	return strings.TrimPrefix(mapped.String(), "DEPLOYMENT_STATUS_")
}

// count is how many replicas a Revision has, 0 where that is not known. The conversion of a
// negative count to a large one is Flyte's, and part of the wire contract.
func count(rev *Revision) uint32 {
	if rev == nil || rev.Status.ActualReplicas == nil {
		return 0
	}
	return uint32(*rev.Status.ActualReplicas)
}

// ReadyIndex is which of the App's conditions is that of the Service's first condition of type
// Ready, -1 without one. It is the one that a PodCondition belongs to.
func ReadyIndex(svc *Service) int {
	c := readyCondition(svc)
	if c == nil || Stopped(svc) {
		return -1
	}
	index := 0
	for i := range svc.Status.Conditions {
		if &svc.Status.Conditions[i] == c {
			break
		}
		if _, ok := deploymentStatus(&svc.Status.Conditions[i], c.Status); ok {
			index++
		}
	}
	return index
}

func conditions(svc *Service) []*appv1.Condition {
	ready := ""
	if c := readyCondition(svc); c != nil {
		ready = c.Status
	}
	var out []*appv1.Condition
	for i := range svc.Status.Conditions {
		c := &svc.Status.Conditions[i]
		mapped, ok := deploymentStatus(c, ready)
		if !ok {
			continue
		}
		at := timestamp(c.LastTransitionTime.Time)
		if at == nil {
			at = fallbackTime(svc)
		}
		out = append(out, &appv1.Condition{DeploymentStatus: mapped, Message: message(c), LastTransitionTime: at})
	}
	return out
}

// deploymentStatus maps a condition, given the status of the Ready condition;
// false means that the App lacks the condition.
func deploymentStatus(c *Condition, ready string) (appv1.Status_DeploymentStatus, bool) {
	switch {
	case c.Type == conditionRoutes && c.Status == conditionUnknown:
		return 0, false
	case c.Status == conditionTrue && ready == conditionTrue:
		return appv1.Status_DEPLOYMENT_STATUS_ACTIVE, true
	case c.Status == conditionTrue:
		return appv1.Status_DEPLOYMENT_STATUS_DEPLOYING, true
	case c.Status == conditionFalse && ready == conditionFalse:
		return appv1.Status_DEPLOYMENT_STATUS_FAILED, true
	case c.Status == conditionFalse:
		return 0, false
	default:
		return appv1.Status_DEPLOYMENT_STATUS_PENDING, true
	}
}

// message is the reason and the message of a condition. The default texts stand
// for any status, so a condition that is not met may carry one.
func message(c *Condition) string {
	switch {
	case c.Reason != "":
		return c.Reason + ": " + c.Message
	case c.Message != "":
		return c.Message
	case c.Type == conditionConfigurations:
		return "Configuration is ready"
	case c.Type == conditionRoutes:
		return "Routes are ready"
	case c.Type == ConditionReady:
		return "Service is ready"
	default:
		return ""
	}
}

// readyCondition is the first condition of type Ready, nil when there is none.
func readyCondition(svc *Service) *Condition {
	at := slices.IndexFunc(svc.Status.Conditions, func(c Condition) bool { return c.Type == ConditionReady })
	if at < 0 {
		return nil
	}
	return &svc.Status.Conditions[at]
}

// fallbackTime replaces Flyte's time of conversion, with which the same object would give a
// different App each time. It is nil if the object has no time of its Ready condition or creation.
func fallbackTime(svc *Service) *timestamppb.Timestamp {
	if c := readyCondition(svc); c != nil && !c.LastTransitionTime.IsZero() {
		return timestamp(c.LastTransitionTime.Time)
	}
	return timestamp(svc.CreationTimestamp.Time)
}

// timestamp is t as a message, nil for the zero time. The Unix epoch is a time.
func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
