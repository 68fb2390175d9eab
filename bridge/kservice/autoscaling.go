package kservice

import (
	"strconv"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Annotations that Knative's autoscaler reads.
const (
	scalingPrefix          = "autoscaling.knative.dev/"
	annotationMinScale     = scalingPrefix + "min-scale"
	annotationInitialScale = scalingPrefix + "initial-scale"
	annotationMetric       = scalingPrefix + "metric"
	annotationTarget       = scalingPrefix + "target"
)

func (t *Template) addScaling(scaling *appv1.AutoscalingConfig, found *Problems) {
	number := func(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
	if replicas := scaling.GetReplicas(); replicas != nil {
		t.annotate(annotationMinScale, number(replicas.GetMin()))
		t.annotate(scalingPrefix+"max-scale", number(replicas.GetMax()))
	}
	switch metric := scaling.GetScalingMetric().GetMetric().(type) {
	case *appv1.ScalingMetric_RequestRate:
		t.annotate(annotationMetric, "rps")
		t.annotate(annotationTarget, number(metric.RequestRate.GetTargetValue()))
	case *appv1.ScalingMetric_Concurrency:
		t.annotate(annotationMetric, "concurrency")
		t.annotate(annotationTarget, number(metric.Concurrency.GetTargetValue()))
	}
	if period := scaling.GetScaledownPeriod(); period != nil {
		found.checkDuration("app.spec.autoscaling.scaledownPeriod", period)
		t.annotate(scalingPrefix+"window", period.AsDuration().String())
	}
}
