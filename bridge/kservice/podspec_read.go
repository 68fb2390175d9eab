package kservice

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
	corev1 "k8s.io/api/core/v1"
)

const (
	podSpecField = "app.spec.pod.podSpec"
	// maxPodValues bounds the fields and items of a pod spec. Two bytes of an empty item take more
	// than a KiB as a container.
	maxPodValues = 8192
	// maxPathBytes bounds the path to a value in an error.
	maxPathBytes = 2 * maxValueBytes
)

// readPodSpec reads a pod spec like encoding/json, and so like Flyte: it ignores the case of field
// names, and unknown fields.
func readPodSpec(written *structpb.Struct, found *Problems) corev1.PodSpec {
	var out corev1.PodSpec
	if written == nil {
		found.Add(podSpecField, "missing")
		return out
	}
	if count := countValues(structpb.NewStructValue(written)); count > maxPodValues {
		found.Add(podSpecField, fmt.Sprintf("has %d fields and items, want at most %d", count, maxPodValues))
		return out
	}
	plain, err := plainStruct(written, boundedQuantity, false)
	if err != nil {
		found.Add(podSpecField+err.path, err.wrong)
		return out
	}
	text, marshalErr := json.Marshal(plain)
	if marshalErr != nil {
		found.Add(podSpecField, marshalErr.Error())
		return out
	}
	if err := json.Unmarshal(text, &out); err != nil {
		// Mostly the reason is a quantity, and the decoder does not report which.
		isQuantity := func(text string) bool { _, ok := parseQuantity(text); return ok }
		if _, bad := plainStruct(written, isQuantity, false); bad != nil {
			found.Add(podSpecField+bad.path, bad.wrong)
		} else {
			found.Add(podSpecField, unreadable(err))
		}
		return corev1.PodSpec{}
	}
	return out
}

// countValues counts the fields and items of a value, at all depths.
func countValues(v *structpb.Value) int {
	count := 0
	for _, field := range v.GetStructValue().GetFields() {
		count += 1 + countValues(field)
	}
	for _, item := range v.GetListValue().GetValues() {
		count += 1 + countValues(item)
	}
	return count
}

// unreadable words an error of encoding/json without the names of Go's types.
func unreadable(err error) string {
	mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return err.Error()
	}
	want := mismatch.Type.Kind().String()
	switch mismatch.Type.Kind() {
	case reflect.Struct, reflect.Map:
		want = "object"
	case reflect.Slice:
		want = "list"
	}
	return fmt.Sprintf("field %s is %s: want %s", Quote(mismatch.Field), Quote(mismatch.Value), want)
}

// structError is a problem of a value inside a Struct.
type structError struct{ path, wrong string }

func (e *structError) in(step string) *structError {
	return &structError{cut(step+e.path, maxPathBytes), e.wrong}
}

// plainStruct is a Struct as encoding/json writes it. If quantities is set, its values are
// quantities. All quantities must be good.
func plainStruct(s *structpb.Struct, good func(string) bool, quantities bool) (map[string]any, *structError) {
	out := make(map[string]any, len(s.GetFields()))
	// In key order, so that the same error is found each time.
	for _, key := range slices.Sorted(maps.Keys(s.GetFields())) {
		value, err := plainValue(s.GetFields()[key], key, good, quantities)
		if err != nil {
			return nil, err.in("." + cut(key, maxValueBytes))
		}
		out[key] = value
	}
	return out, nil
}

// isField reports whether encoding/json takes a key for one of these fields.
func isField(key string, names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(key, name) })
}

func plainValue(v *structpb.Value, key string, good func(string) bool, quantity bool) (any, *structError) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_NullValue:
		return nil, nil
	case *structpb.Value_BoolValue:
		return kind.BoolValue, nil
	case *structpb.Value_NumberValue:
		if math.IsNaN(kind.NumberValue) || math.IsInf(kind.NumberValue, 0) {
			return nil, &structError{wrong: fmt.Sprintf("%v: want a number", kind.NumberValue)}
		}
		return kind.NumberValue, nil
	case *structpb.Value_StringValue:
		if (quantity || isField(key, "sizeLimit", "divisor")) && !good(kind.StringValue) {
			return nil, &structError{wrong: Quote(kind.StringValue) + ": want " + wantQuantity}
		}
		return kind.StringValue, nil
	case *structpb.Value_StructValue:
		return plainStruct(kind.StructValue, good, isField(key, "limits", "requests", "overhead"))
	case *structpb.Value_ListValue:
		out := make([]any, len(kind.ListValue.GetValues()))
		for i, element := range kind.ListValue.GetValues() {
			value, err := plainValue(element, "", good, false)
			if err != nil {
				return nil, err.in("[" + strconv.Itoa(i) + "]")
			}
			out[i] = value
		}
		return out, nil
	default:
		return nil, &structError{wrong: "has no value"}
	}
}
