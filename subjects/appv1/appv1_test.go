package appv1_test

import (
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/appbridge/appbridge/subjects/appv1"
)

// Numbers that Flyte gave up must not be used again: old bytes still hold them.
func TestReservedNumbers(t *testing.T) {
	tests := []struct {
		name    string
		message proto.Message
		want    []protoreflect.FieldNumber
	}{
		{"SecurityContext", &appv1.SecurityContext{}, []protoreflect.FieldNumber{3, 4}},
		{"ArtifactBindingData", &appv1.ArtifactBindingData{}, []protoreflect.FieldNumber{1, 2, 3, 4}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reserved := tt.message.ProtoReflect().Descriptor().ReservedRanges()
			for _, number := range tt.want {
				if !reserved.Has(number) {
					t.Errorf("number %d: got free, want reserved", number)
				}
			}
		})
	}
}

func TestUnknownFieldsSurviveBinary(t *testing.T) {
	want := &appv1.App{Metadata: &appv1.Meta{Id: &appv1.Identifier{Name: "n"}}}
	// Field 99, a varint of 1.
	want.Metadata.ProtoReflect().SetUnknown(protoreflect.RawFields{0x98, 0x06, 0x01})
	wire, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got appv1.App
	if err := proto.Unmarshal(wire, &got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&got, want) || len(got.Metadata.ProtoReflect().GetUnknown()) != 3 {
		t.Errorf("got %v, want %v", &got, want)
	}
}
