package main

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	networkingv1alpha1 "knative.dev/networking/pkg/apis/networking/v1alpha1"
	networkconfig "knative.dev/networking/pkg/config"
	"knative.dev/pkg/configmap"
	"knative.dev/pkg/controller"
	"knative.dev/pkg/injection"
	"knative.dev/pkg/leaderelection"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/webhook"
	"knative.dev/pkg/webhook/configmaps"
	"knative.dev/pkg/webhook/resourcesemantics"
	"knative.dev/pkg/webhook/resourcesemantics/defaulting"
	"knative.dev/pkg/webhook/resourcesemantics/validation"
	autoscalingv1alpha1 "knative.dev/serving/pkg/apis/autoscaling/v1alpha1"
	servingconfig "knative.dev/serving/pkg/apis/config"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	servingv1beta1 "knative.dev/serving/pkg/apis/serving/v1beta1"
	autoscalerconfig "knative.dev/serving/pkg/autoscaler/config"
	"knative.dev/serving/pkg/deployment"
	"knative.dev/serving/pkg/gc"
	observability "knative.dev/serving/pkg/observability/configmap"
	domainconfig "knative.dev/serving/pkg/reconciler/route/config"
	servingwebhook "knative.dev/serving/pkg/webhook"
)

// webhooks are those of Knative's command webhook, with its names and paths.
var webhooks = []injection.ControllerConstructor{newDefaulting, newValidation, newConfigValidation}

// kinds are what the webhooks complete and validate.
var kinds = map[schema.GroupVersionKind]resourcesemantics.GenericCRD{
	servingv1.SchemeGroupVersion.WithKind("Service"):       &servingv1.Service{},
	servingv1.SchemeGroupVersion.WithKind("Route"):         &servingv1.Route{},
	servingv1.SchemeGroupVersion.WithKind("Configuration"): &servingv1.Configuration{},
	servingv1.SchemeGroupVersion.WithKind("Revision"):      &servingv1.Revision{},

	servingv1beta1.SchemeGroupVersion.WithKind("DomainMapping"): &servingv1beta1.DomainMapping{},

	autoscalingv1alpha1.SchemeGroupVersion.WithKind("PodAutoscaler"): &autoscalingv1alpha1.PodAutoscaler{},
	autoscalingv1alpha1.SchemeGroupVersion.WithKind("Metric"):        &autoscalingv1alpha1.Metric{},

	networkingv1alpha1.SchemeGroupVersion.WithKind("Certificate"):       &networkingv1alpha1.Certificate{},
	networkingv1alpha1.SchemeGroupVersion.WithKind("Ingress"):           &networkingv1alpha1.Ingress{},
	networkingv1alpha1.SchemeGroupVersion.WithKind("ServerlessService"): &networkingv1alpha1.ServerlessService{},
}

// extra is what a Service and a Configuration are validated for beyond their own types.
var extra = map[schema.GroupVersionKind]validation.Callback{
	servingv1.SchemeGroupVersion.WithKind("Service"):       validation.NewCallback(servingwebhook.ValidateService, webhook.Create, webhook.Update),
	servingv1.SchemeGroupVersion.WithKind("Configuration"): validation.NewCallback(servingwebhook.ValidateConfiguration, webhook.Create, webhook.Update),
}

// settings puts the cluster's settings into the context that objects are completed and validated in.
func settings(ctx context.Context, configs configmap.Watcher) func(context.Context) context.Context {
	store := servingconfig.NewStore(logging.FromContext(ctx).Named("config-store"))
	store.WatchConfigs(configs)
	return store.ToContext
}

func newDefaulting(ctx context.Context, configs configmap.Watcher) *controller.Impl {
	return defaulting.NewAdmissionController(ctx, "webhook.serving.knative.dev", "/defaulting",
		kinds, settings(ctx, configs), false)
}

func newValidation(ctx context.Context, configs configmap.Watcher) *controller.Impl {
	return validation.NewAdmissionController(ctx, "validation.webhook.serving.knative.dev", "/resource-validation",
		kinds, settings(ctx, configs), false, extra)
}

func newConfigValidation(ctx context.Context, _ configmap.Watcher) *controller.Impl {
	return configmaps.NewAdmissionController(ctx, "config.webhook.serving.knative.dev", "/config-validation",
		configmap.Constructors{
			servingconfig.DefaultsConfigName: servingconfig.NewDefaultsConfigFromConfigMap,
			servingconfig.FeaturesConfigName: servingconfig.NewFeaturesConfigFromConfigMap,
			autoscalerconfig.ConfigName:      autoscalerconfig.NewConfigFromConfigMap,
			deployment.ConfigName:            deployment.NewConfigFromConfigMap,
			domainconfig.DomainConfigName:    domainconfig.NewDomainFromConfigMap,
			gc.ConfigName:                    gc.NewConfigFromConfigMapFunc(ctx),
			networkconfig.ConfigMapName:      networkconfig.NewConfigFromConfigMap,
			observability.Name():             observability.Parse,
			logging.ConfigMapName():          logging.NewConfigFromConfigMap,
			leaderelection.ConfigMapName():   leaderelection.NewConfigFromConfigMap,
		})
}
