package kservice

import (
	"strconv"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Annotations that Knative's autoscaler reads.
const (
	scalingPrefix          = "autoscaling.knative.dev/"
	annotationMinScale     = scalingPrefix + "min-scale"
	annotationMaxScale     = scalingPrefix + "max-scale"
	annotationInitialScale = scalingPrefix + "initial-scale"
	annotationMetric       = scalingPrefix + "metric"
	annotationTarget       = scalingPrefix + "target"
	annotationWindow       = scalingPrefix + "window"

	metricRequests    = "rps"
	metricConcurrency = "concurrency"
)

func (t *Template) addScaling(scaling *appv1.AutoscalingConfig, found *Problems) {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	if replicas := scaling.GetReplicas(); replicas != nil {
		t.annotate(annotationMinScale, number(replicas.GetMin()))
		t.annotate(annotationMaxScale, number(replicas.GetMax()))
	}
	switch metric := scaling.GetScalingMetric().GetMetric().(type) {
	case *appv1.ScalingMetric_RequestRate:
		t.annotate(annotationMetric, metricRequests)
		t.annotate(annotationTarget, number(metric.RequestRate.GetTargetValue()))
	case *appv1.ScalingMetric_Concurrency:
		t.annotate(annotationMetric, metricConcurrency)
		t.annotate(annotationTarget, number(metric.Concurrency.GetTargetValue()))
	}
	if period := scaling.GetScaledownPeriod(); period != nil {
		found.checkDuration("app.spec.autoscaling.scaledownPeriod", period)
		t.annotate(annotationWindow, period.AsDuration().String())
	}
}
