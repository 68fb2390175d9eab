package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"knative.dev/pkg/apis"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var serviceKind = servingv1.SchemeGroupVersion.WithKind("Service")

// Create creates the app's Knative Service: the state in which Flyte leaves it.
func (c *Cluster) Create(ctx context.Context, app App) (*servingv1.Service, error) {
	svc := app.Service()
	if err := c.Client.Create(ctx, svc); err != nil {
		return nil, fmt.Errorf("create the Knative Service of %s: %w", app.ID(), err)
	}
	return svc, nil
}

// Redeploy writes a changed app over its Knative Service as Flyte's deploy does,
// which also starts a stopped one.
func (c *Cluster) Redeploy(ctx context.Context, app App) (*servingv1.Service, error) {
	stored, built := &servingv1.Service{}, app.Service()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(built), stored); err != nil {
			return err
		}
		stored.Spec = *built.Spec.DeepCopy()
		maps.Copy(stored.Labels, built.Labels)
		maps.Copy(stored.Annotations, built.Annotations)
		delete(stored.Labels, labelStopped)
		delete(stored.Labels, labelVisibility)
		return c.Client.Update(ctx, stored)
	})
	if err != nil {
		return nil, fmt.Errorf("deploy %s again: %w", app.ID(), err)
	}
	return stored, nil
}

// Progressing writes the status of a Service whose newest Revision is on its
// way: every condition unknown. Of svc, here and below, only namespace and name
// count; the returned object is the one the API server stored.
func (c *Cluster) Progressing(ctx context.Context, svc *servingv1.Service) (*servingv1.Service, error) {
	return c.updateStatus(ctx, svc, func(svc *servingv1.Service) {
		svc.Status.ObservedGeneration = svc.Generation
		svc.Status.InitializeConditions()
		propagateConfiguration(svc, func(cs *servingv1.ConfigurationStatus) {
			cs.SetLatestCreatedRevisionName(revisionName(svc, ""))
		})
		if svc.Status.LatestReadyRevisionName == "" {
			propagateRoute(svc, func(rs *servingv1.RouteStatus) { rs.MarkConfigurationNotReady(svc.Name) })
		}
	})
}

// Ready writes the status of a Service whose newest Revision serves: every
// condition true. The Revision exists before, with so many actual replicas;
// empty means Knative's next name.
func (c *Cluster) Ready(ctx context.Context, svc *servingv1.Service, revision string, replicas int32) (*servingv1.Service, error) {
	if err := c.ensureRevision(ctx, svc, revision, replicas); err != nil {
		return nil, err
	}
	return c.updateStatus(ctx, svc, func(svc *servingv1.Service) {
		svc.Status.ObservedGeneration = svc.Generation
		svc.Status.InitializeConditions()
		configurationReady(svc, revision)
		routeReady(svc)
	})
}

// Failed writes the status of a Service whose newest Revision cannot run. A
// Revision that served before goes on serving.
func (c *Cluster) Failed(ctx context.Context, svc *servingv1.Service, reason, message string) (*servingv1.Service, error) {
	return c.updateStatus(ctx, svc, func(svc *servingv1.Service) {
		svc.Status.ObservedGeneration = svc.Generation
		svc.Status.InitializeConditions()
		propagateConfiguration(svc, func(cs *servingv1.ConfigurationStatus) {
			cs.SetLatestCreatedRevisionName(revisionName(svc, ""))
			new(servingv1.Configuration).GetConditionSet().Manage(cs).MarkFalse(servingv1.ConfigurationConditionReady, reason, "%s", message)
		})
		if svc.Status.LatestReadyRevisionName == "" {
			propagateRoute(svc, func(rs *servingv1.RouteStatus) { rs.MarkConfigurationFailed(svc.Name) })
		}
	})
}

// Rollout takes a new or changed Service to Ready by the steps that Knative
// takes: with the creation these are six versions of the object.
func (c *Cluster) Rollout(ctx context.Context, svc *servingv1.Service, revision string, replicas int32) (*servingv1.Service, error) {
	steps := []func(*servingv1.Service){
		func(svc *servingv1.Service) {
			svc.Status.ObservedGeneration = svc.Generation
			svc.Status.InitializeConditions()
		},
		func(svc *servingv1.Service) {
			propagateConfiguration(svc, func(cs *servingv1.ConfigurationStatus) {
				cs.SetLatestCreatedRevisionName(revisionName(svc, revision))
			})
			propagateRoute(svc, func(rs *servingv1.RouteStatus) { rs.MarkConfigurationNotReady(svc.Name) })
		},
		func(svc *servingv1.Service) {
			configurationReady(svc, revision)
			svc.Status.MarkRouteNotYetReady()
		},
		func(svc *servingv1.Service) {
			propagateRoute(svc, func(rs *servingv1.RouteStatus) { rs.MarkIngressNotConfigured() })
		},
		routeReady,
	}
	for i, step := range steps {
		if i == 2 { // the Revision is there before it is named ready
			if err := c.ensureRevision(ctx, svc, revision, replicas); err != nil {
				return nil, err
			}
		}
		stored, err := c.updateStatus(ctx, svc, step)
		if err != nil {
			return nil, err
		}
		svc = stored
	}
	return svc, nil
}

// StopApp stops an app the way Flyte does: MarkStopped, and the latest ready
// Revision deleted.
func (c *Cluster) StopApp(ctx context.Context, svc *servingv1.Service) (*servingv1.Service, error) {
	stopped, err := c.MarkStopped(ctx, svc)
	if err != nil {
		return nil, err
	}
	return stopped, c.DeleteRevision(ctx, stopped)
}

// MarkStopped is the first half of a stop: the labels, and a minimum of zero.
func (c *Cluster) MarkStopped(ctx context.Context, svc *servingv1.Service) (*servingv1.Service, error) {
	return c.Patch(ctx, svc, object{
		"metadata": object{"labels": object{labelStopped: "true", labelVisibility: "cluster-local"}},
		"spec": object{"template": object{"metadata": object{"annotations": object{
			annotationMinScale: "0", annotationInitialScale: "0",
		}}}},
	})
}

// SetLabel writes one label of a Service; an empty value takes it away.
func (c *Cluster) SetLabel(ctx context.Context, svc *servingv1.Service, key, value string) (*servingv1.Service, error) {
	var v any
	if value != "" {
		v = value
	}
	return c.Patch(ctx, svc, object{"metadata": object{"labels": object{key: v}}})
}

type object = map[string]any

// Patch merges a JSON patch (RFC 7386) into a Service: not into its status.
func (c *Cluster) Patch(ctx context.Context, svc *servingv1.Service, patch map[string]any) (*servingv1.Service, error) {
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("patch %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	stored := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	if err := c.Client.Patch(ctx, stored, client.RawPatch(types.MergePatchType, body)); err != nil {
		return nil, fmt.Errorf("patch %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	return stored, nil
}

// PatchStatus merges a JSON patch into a Service's status: an unparsable
// url for example, which Knative's own types could neither write nor read.
func (c *Cluster) PatchStatus(ctx context.Context, svc *servingv1.Service, status map[string]any) error {
	body, err := json.Marshal(object{"status": status})
	if err != nil {
		return fmt.Errorf("patch the status of %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(serviceKind)
	raw.SetNamespace(svc.Namespace)
	raw.SetName(svc.Name)
	if err := c.Client.Status().Patch(ctx, raw, client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("patch the status of %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	return nil
}

// Delete deletes a Service and then its Revisions, which otherwise Kubernetes'
// garbage collector would do.
func (c *Cluster) Delete(ctx context.Context, svc *servingv1.Service) error {
	gone := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name}}
	if err := c.Client.Delete(ctx, gone); err != nil {
		return fmt.Errorf("delete %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	err := c.Client.DeleteAllOf(ctx, &servingv1.Revision{},
		client.InNamespace(svc.Namespace), client.MatchingLabels{labelService: svc.Name})
	if err != nil {
		return fmt.Errorf("delete the Revisions of %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	return nil
}

func (c *Cluster) updateStatus(ctx context.Context, svc *servingv1.Service, change func(*servingv1.Service)) (*servingv1.Service, error) {
	stored := &servingv1.Service{}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Client.Get(ctx, client.ObjectKeyFromObject(svc), stored); err != nil {
			return err
		}
		change(stored)
		return c.Client.Status().Update(ctx, stored)
	})
	if err != nil {
		return nil, fmt.Errorf("write the status of %s: %w", client.ObjectKeyFromObject(svc), err)
	}
	return stored, nil
}

// propagateConfiguration applies a change to what the Service knows of its
// Configuration, through Knative's own rules.
func propagateConfiguration(svc *servingv1.Service, change func(*servingv1.ConfigurationStatus)) {
	cs := &servingv1.ConfigurationStatus{ConfigurationStatusFields: svc.Status.ConfigurationStatusFields}
	cs.InitializeConditions()
	change(cs)
	svc.Status.PropagateConfigurationStatus(cs)
}

// propagateRoute does the same for the Route.
func propagateRoute(svc *servingv1.Service, change func(*servingv1.RouteStatus)) {
	rs := &servingv1.RouteStatus{RouteStatusFields: svc.Status.RouteStatusFields}
	rs.InitializeConditions()
	change(rs)
	svc.Status.PropagateRouteStatus(rs)
}

func configurationReady(svc *servingv1.Service, revision string) {
	propagateConfiguration(svc, func(cs *servingv1.ConfigurationStatus) {
		name := revisionName(svc, revision)
		cs.SetLatestCreatedRevisionName(name)
		cs.SetLatestReadyRevisionName(name)
	})
}

func routeReady(svc *servingv1.Service) {
	propagateRoute(svc, func(rs *servingv1.RouteStatus) {
		latest, all := true, int64(100)
		rs.URL = apis.HTTP(svc.Name + "." + svc.Namespace + ".example.com")
		rs.Traffic = []servingv1.TrafficTarget{{
			RevisionName: svc.Status.LatestReadyRevisionName, LatestRevision: &latest, Percent: &all,
		}}
		conditions := new(servingv1.Route).GetConditionSet().Manage(rs)
		conditions.MarkTrue(servingv1.RouteConditionAllTrafficAssigned)
		conditions.MarkTrue(servingv1.RouteConditionIngressReady)
		conditions.MarkTrue(servingv1.RouteConditionCertificateProvisioned)
	})
}
