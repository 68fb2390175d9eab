package corpus

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"knative.dev/pkg/apis"
	"knative.dev/serving/pkg/apis/config"
	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	autoscaler "knative.dev/serving/pkg/autoscaler/config"
)

// Settings are those of a Knative that allows what a setting can allow, with request timeouts up to
// the maximum of the corpus.
func Settings(tb testing.TB) *config.Config {
	tb.Helper()
	defaults, err := config.NewDefaultsConfigFromMap(map[string]string{"max-revision-timeout-seconds": "3600"})
	if err != nil {
		tb.Fatal(err)
	}
	scaler, err := autoscaler.NewConfigFromMap(map[string]string{"allow-zero-initial-scale": "true"})
	if err != nil {
		tb.Fatal(err)
	}
	features := &config.Features{}
	for _, flag := range reflect.ValueOf(features).Elem().Fields() {
		flag.SetString(string(config.Enabled))
	}
	return &config.Config{Defaults: defaults, Features: features, Autoscaler: scaler}
}

// Refusal is Knative's reason to refuse a Service that is created, or updated from old where that
// is not nil; empty where it takes it.
func Refusal(tb testing.TB, settings *config.Config, object, old map[string]any) string {
	tb.Helper()
	ctx := apis.WithinCreate(config.ToContext(context.Background(), settings))
	if old != nil {
		ctx = apis.WithinUpdate(config.ToContext(context.Background(), settings), service(tb, old))
	}
	svc := service(tb, object)
	svc.SetDefaults(ctx)
	if err := svc.Validate(ctx).Filter(apis.ErrorLevel); err != nil {
		return err.Error()
	}
	return ""
}

// service is an object as Knative decodes it.
func service(tb testing.TB, object map[string]any) *servingv1.Service {
	tb.Helper()
	text, err := json.Marshal(runtime.DeepCopyJSON(object))
	if err != nil {
		tb.Fatal(err)
	}
	svc := &servingv1.Service{}
	if err := json.Unmarshal(text, svc); err != nil {
		tb.Fatalf("not a Knative Service: %v", err)
	}
	return svc
}
