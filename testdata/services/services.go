// Package services holds sample Knative Services in the form in which Flyte's
// deploy writes them: for the demo, and to be applied by hand.
package services

import (
	"embed"
	"fmt"

	servingv1 "knative.dev/serving/pkg/apis/serving/v1"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// All are the samples in the order of their file names. Each call returns
// objects of its own.
func All() ([]*servingv1.Service, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read the sample services: %w", err)
	}
	var all []*servingv1.Service
	for _, entry := range entries {
		text, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the sample services: %w", err)
		}
		svc := &servingv1.Service{}
		if err := yaml.UnmarshalStrict(text, svc); err != nil {
			return nil, fmt.Errorf("read the sample service %s: %w", entry.Name(), err)
		}
		all = append(all, svc)
	}
	return all, nil
}
