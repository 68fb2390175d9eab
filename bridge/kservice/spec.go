package kservice

import (
	"encoding/base64"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// spec is the deployed spec of the app, from its annotation. It is nil if it is missing or cannot
// be read, so that readers get the rest of the app. Unknown fields stay in it.
func spec(svc *Service) *appv1.Spec {
	written, ok := svc.Annotations[AnnotationSpec]
	if !ok {
		return nil
	}
	// Skips line ends and accepts any trailing bits, as Flyte does.
	wire, err := base64.StdEncoding.DecodeString(written)
	if err != nil {
		return nil
	}
	var out appv1.Spec
	if err := proto.Unmarshal(wire, &out); err != nil {
		return nil
	}
	if Stopped(svc) {
		out.DesiredState = appv1.Spec_DESIRED_STATE_STOPPED
	}
	return &out
}
