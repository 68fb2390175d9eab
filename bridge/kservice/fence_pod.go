package kservice

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// pod checks every field that a pod spec sets. What the table does not know is denied.
func (f *fenced) pod(spec *corev1.PodSpec) {
	if spec.ServiceAccountName == "" && spec.DeprecatedServiceAccount == "" {
		f.account(f.accountField, defaultAccount)
	}
	f.walk(reflect.ValueOf(spec), podSpecField)
}

func (f *fenced) walk(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		f.walk(v.Elem(), path)
	case reflect.Slice:
		for i := range v.Len() {
			f.walk(v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[corev1.Toleration]() {
			f.toleration(v.Interface().(corev1.Toleration), path)
		}
		if !leaf(v.Type()) {
			f.fields(v.Type().Name(), v, path)
		}
	}
}

// leaf reports whether a type, none of a pod spec's own, is a value in itself.
func leaf(t reflect.Type) bool {
	return slices.Contains([]reflect.Type{
		reflect.TypeFor[resource.Quantity](), reflect.TypeFor[intstr.IntOrString](), reflect.TypeFor[metav1.LabelSelector](),
	}, t)
}

// fields checks the fields of a struct. owner is the type that they count as fields of.
func (f *fenced) fields(owner string, v reflect.Value, path string) {
	for i := range v.NumField() {
		value, field := v.Field(i), v.Type().Field(i)
		if value.IsZero() || value.Kind() == reflect.Slice && value.Len() == 0 || value.Kind() == reflect.Map && value.Len() == 0 {
			continue
		}
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && field.Anonymous {
			f.fields(owner, value, path)
			continue
		}
		f.field(owner+"."+name, value, path+"."+name)
	}
}

func (f *fenced) field(key string, v reflect.Value, path string) {
	switch class := classes()[key]; class {
	case classInside:
		f.walk(v, path)
	case classAccount:
		if path == podSpecField+".serviceAccountName" {
			path = f.accountField
		}
		f.account(path, v.String())
	case classSecret:
		f.reference(path, kindSecret, v.String())
	case classConfigMap:
		f.reference(path, kindConfigMap, v.String())
	case classClaim:
		f.reference(path, kindClaim, v.String())
	case classHost:
		f.host(key, v, path)
	case classOther:
		f.denied.Add(path, "reaches beyond the app, "+noOption)
	default:
		f.denied.Add(path, "not known to stay within the app, "+noOption)
	}
}

// host denies what reaches the node, but for the values that do not.
func (f *fenced) host(key string, v reflect.Value, path string) {
	allowed := strings.Fields(harmless[key])
	switch {
	case len(allowed) == 0:
		f.denied.Add(path, "reaches the node, "+noOption)
	case v.Kind() == reflect.Pointer:
		f.host(key, v.Elem(), path)
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			f.host(key, v.Index(i), path+"["+strconv.Itoa(i)+"]")
		}
	default:
		if value := fmt.Sprint(v); !slices.Contains(allowed, value) {
			f.deny(path, value, "reaches the node, "+noOption+"; want "+strings.Join(allowed, ", "))
		}
	}
}

// toleration denies what lets a pod onto nodes of the control plane. One without a key tolerates
// every taint.
func (f *fenced) toleration(t corev1.Toleration, path string) {
	if t.Key == "" || strings.HasPrefix(t.Key, nodeRolePrefix) {
		f.deny(path+".key", t.Key, "tolerates the taints of the control plane, "+noOption)
	}
}
