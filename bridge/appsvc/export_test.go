package appsvc

import (
	"time"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// SetWriteTimeout changes how long a write may take. It is called before Run.
func (s *Service) SetWriteTimeout(limit time.Duration) { s.timeouts.write = limit }

// SetKubeTimeout changes how long one request of a write to Kubernetes may take. It is called before
// Run.
func (s *Service) SetKubeTimeout(limit time.Duration) {
	if s.kube != nil {
		s.kube.timeout = limit
	}
}

// SetCacheTimeout changes how long a write waits for the cache. It is called before Run.
func (s *Service) SetCacheTimeout(limit time.Duration) { s.timeouts.cache = limit }

// SetReadTimeouts changes how long a request may wait for its turn, and a read may take. It
// is called before Run.
func (s *Service) SetReadTimeouts(queue, read time.Duration) {
	s.timeouts.queue, s.timeouts.read = queue, read
}

// SetCheck replaces kservice.Check. It is called before Run.
func (s *Service) SetCheck(check func(*servingv1.Service, *appv1.App, kservice.DeployConfig) []string) {
	s.check = check
}
