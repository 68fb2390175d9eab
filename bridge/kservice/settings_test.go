package kservice_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"knative.dev/serving/pkg/apis/config"

	"github.com/appbridge/appbridge/testdata/testenv/corpus"
)

// documentedFlags are the rows of docs/apps.md with a flag of Knative, each with its last cells: the
// default, and whether the corpus needs it.
func documentedFlags(t *testing.T) map[string][2]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repositoryRoot, "docs", "apps.md"))
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string][2]string{}
	row := regexp.MustCompile("(?m)^\\| [^|]+ \\| `((?:kubernetes\\.|multi-container)[a-z.-]*)` \\| (on|off) \\| (yes )?\\|$")
	for _, found := range row.FindAllStringSubmatch(string(page), -1) {
		flags[found[1]] = [2]string{found[2], strings.TrimSpace(found[3])}
	}
	return flags
}

// settings has the flags that are named, and no other.
func settings(t *testing.T, flags map[string]string) *config.Config {
	t.Helper()
	out := corpus.Settings(t)
	var err error
	if out.Features, err = config.NewFeaturesConfigFromMap(flags); err != nil {
		t.Fatal(err)
	}
	return out
}

// An app with all fields of the documented flags needs each of them, those that are on by default
// too, and no other.
func TestDocumentedFlags(t *testing.T) {
	documented := documentedFlags(t)
	if got, want := len(documented), 18; got != want {
		t.Errorf("%d flags are documented, want %d", got, want)
	}
	id, app := deployedApp(t, everyFeature)
	cfg := deployDefaults()
	cfg.Policy = allowing(t, nil, "persistentvolumeclaim/data")
	svc, err := build(id, app, cfg)
	if err != nil {
		t.Fatal(err)
	}
	object := deployedObject(t, svc)
	on := map[string]string{}
	for flag := range documented {
		on[flag] = "enabled"
	}
	if got := corpus.Refusal(t, settings(t, on), object, nil); got != "" {
		t.Errorf("with every documented flag: got %s, want no refusal", got)
	}
	for flag, row := range documented {
		without := maps.Clone(on)
		without[flag] = "disabled"
		if corpus.Refusal(t, settings(t, without), object, nil) == "" {
			t.Errorf("%s: the app does not need it", flag)
		}
		delete(without, flag)
		if got, want := corpus.Refusal(t, settings(t, without), object, nil) == "", row[0] == "on"; got != want {
			t.Errorf("%s: on by default: got %t, want %t", flag, got, want)
		}
	}
}

// The flags that pods of the corpus need are those that the page marks.
func TestDocumentedFlagsOfCorpus(t *testing.T) {
	var objects []map[string]any
	dir := filepath.Join(repositoryRoot, corpus.DefaultDir, "cases")
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		var c struct {
			KService map[string]any `json:"kservice"`
		}
		if err := json.Unmarshal(corpus.ReadFile(t, filepath.Join(dir, entry.Name())), &c); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, c.KService)
	}
	for _, c := range corpus.ReadList[corpus.DeployCase](t, filepath.Join(repositoryRoot, corpus.DefaultDir, "deploy.json")) {
		for _, step := range c.Steps {
			if want := step.Expect.Value.KService; want != nil {
				objects = append(objects, want.Object)
			}
		}
	}
	documented := documentedFlags(t)
	on := map[string]string{}
	var marked []string
	for flag, row := range documented {
		on[flag] = "enabled"
		if row[1] == "yes" {
			marked = append(marked, flag)
		}
	}
	var needed []string
	for flag := range documented {
		without := maps.Clone(on)
		without[flag] = "disabled"
		if slices.ContainsFunc(objects, func(object map[string]any) bool {
			spec := map[string]any{"metadata": map[string]any{"name": "app"}, "spec": object["spec"]}
			return corpus.Refusal(t, settings(t, on), spec, nil) != corpus.Refusal(t, settings(t, without), spec, nil)
		}) {
			needed = append(needed, flag)
		}
	}
	slices.Sort(marked)
	slices.Sort(needed)
	if !slices.Equal(marked, needed) {
		t.Errorf("marked %q, want %q", marked, needed)
	}
}
