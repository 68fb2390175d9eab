package app

import (
	"encoding/base64"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// A spec that nests as deep as can be read alone is deeper in an event. What is published can be read
// whatever the depth of the spec; the App of one that is too deep has none.
func TestDeepSpec(t *testing.T) {
	for _, levels := range []int{3331, 3332, 3333} {
		nested := &structpb.Struct{}
		for range levels {
			nested = &structpb.Struct{Fields: map[string]*structpb.Value{"": structpb.NewStructValue(nested)}}
		}
		wire, err := proto.Marshal(&appv1.Spec{AppPayload: &appv1.Spec_Pod{Pod: &appv1.K8SPod{PodSpec: nested}}})
		if err != nil {
			t.Fatal(err)
		}
		for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
			e := testEncoder()
			e.Form = form
			svc := Keeper{Form: form}.Keep(testRaw(func(svc *kservice.Service) {
				svc.Annotations[kservice.AnnotationSpec] = base64.StdEncoding.EncodeToString(wire)
			}))
			ev, err := e.Encode(testID, NewUpsert(State{Service: svc}, true), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ReadEvent(ev.Record.Kind, 1, ev.Msg.Header, ev.Msg.Data); err != nil {
				t.Errorf("%d levels, %s: %v", levels, form, err)
			}
		}
	}
}
