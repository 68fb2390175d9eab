package kservice

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The table has each field of each type that a pod spec can reach through fields that are inside,
// and no other.
func TestPolicyTable(t *testing.T) {
	want := map[string]bool{}
	done := map[reflect.Type]bool{}
	var walk func(reflect.Type)
	var fields func(string, reflect.Type)
	walk = func(typ reflect.Type) {
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, typ.Kind()) {
			typ = typ.Elem()
		}
		if typ.Kind() == reflect.Struct && !leaf(typ) && !done[typ] {
			done[typ] = true
			fields(typ.Name(), typ)
		}
	}
	fields = func(owner string, typ reflect.Type) {
		for i := range typ.NumField() {
			field := typ.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" {
				fields(owner, field.Type)
				continue
			}
			key := owner + "." + name
			want[key] = true
			switch classes()[key] {
			case classUnknown:
				t.Errorf("%s has no class", key)
			case classInside:
				walk(field.Type)
			case classAccount, classSecret, classConfigMap, classClaim:
				if field.Type.Kind() != reflect.String {
					t.Errorf("%s is a %s, want a string: it is a name", key, field.Type)
				}
			}
			if field.Type.Kind() == reflect.Map && field.Type.Elem().Kind() == reflect.Struct && !leaf(field.Type.Elem()) {
				t.Errorf("%s is a %s: the check does not look into it", key, field.Type)
			}
		}
	}
	walk(reflect.TypeFor[corev1.PodSpec]())
	for _, key := range slices.Sorted(maps.Keys(classes())) {
		if !want[key] {
			t.Errorf("%s is in the table and is no field", key)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(harmless)) {
		if classes()[key] != classHost {
			t.Errorf("%s has harmless values and is not one of classHost", key)
		}
	}
}
