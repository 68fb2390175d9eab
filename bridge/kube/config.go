package kube

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Timeout bounds one request of the bridge to Kubernetes.
const Timeout = 15 * time.Second

// Unlimited returns a copy of cfg without a client-side rate limit: the API server has its own.
func Unlimited(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS, cfg.RateLimiter = -1, nil
	return cfg
}

// Protobuf returns a copy of cfg that prefers protobuf, for the resources of Kubernetes itself.
func Protobuf(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg
}
