package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/chaos/audit"
)

// appState is a state of an app, as the cluster has it or as an event tells it.
type appState struct {
	uid     string
	version int64 // of a removal: that of the removal, 0 if nobody saw it
	gone    bool
}

// stateOf reads the state that an event tells, and the key of its app. A
// message that is no event tells none.
func stateOf(m audit.Message, names subjects.Subjects) (key string, s appState, ok bool) {
	if m.Header.Get(subjects.CEType) == "" {
		return "", appState{}, false
	}
	id, kind, err := names.ParseEvent(m.Subject)
	if err != nil {
		return "", appState{}, false
	}
	if key, err = id.Key(); err != nil {
		return "", appState{}, false
	}
	s = appState{uid: m.Header.Get(subjects.HeaderUID), gone: kind == subjects.Deleted}
	version := m.Header.Get(subjects.HeaderResourceVersion)
	if s.gone {
		version = m.Header.Get(subjects.HeaderDeletedResourceVersion)
	}
	s.version, _ = strconv.ParseInt(version, 10, 64) // 0: not known
	return key, s, true
}

// truthAt is the state of every app at a revision of etcd, by key.
func truthAt(changes []audit.Change, revision int64) map[string]appState {
	apps := map[string]appState{}
	for _, c := range changes {
		if c.Kind != audit.KindService {
			continue
		}
		version, err := strconv.ParseInt(c.ResourceVersion, 10, 64)
		if err != nil || version > revision {
			continue
		}
		key, ok := keyOf(c.Object)
		if !ok {
			continue
		}
		gone := c.Deleted || c.Object.GetLabels()[kservice.LabelManaged] != "true"
		apps[key] = appState{uid: string(c.UID), version: version, gone: gone}
	}
	return apps
}

// keyOf is the key of the app that a Knative Service is.
func keyOf(object *unstructured.Unstructured) (string, bool) {
	parts := strings.SplitN(object.GetAnnotations()[kservice.AnnotationAppID], "/", 3)
	if len(parts) != 3 {
		return "", false
	}
	key, err := subjects.AppID{Project: parts[0], Domain: parts[1], Name: parts[2]}.Key()
	return key, err == nil
}

// behind lists the apps whose newest event is older than the cluster was at a
// revision. now is the cluster as it is.
func behind(then, now map[string]appState, events map[string]appEvent) []string {
	var apps []string
	for _, key := range slices.Sorted(maps.Keys(then)) {
		told, any := events[key]
		if !covers(told.appState, any, then[key], now[key]) {
			apps = append(apps, key)
		}
	}
	return apps
}

// covers tells whether an app's newest event is as new as a state of it.
func covers(told appState, any bool, then, now appState) bool {
	switch {
	case !any:
		return then.gone || now.gone // came and went untold
	case told.version >= then.version:
		return true
	case then.gone:
		return told.gone
	default:
		// The app was removed later, when nobody looked.
		return told.gone && told.version == 0 && now.gone
	}
}

// few names the first of many.
func few(names []string) string {
	if len(names) <= 3 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:3], ", "), len(names)-3)
}
