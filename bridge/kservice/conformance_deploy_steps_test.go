package kservice_test

import (
	"encoding/json"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// deployCase is one entry of deploy.json.
type deployCase struct {
	Name   string               `json:"name"`
	Config strict[deployConfig] `json:"config"`
	Steps  []deployStep         `json:"steps"`
}

// deployConfig is the configuration as deploy.json writes it.
type deployConfig struct {
	conformanceConfig
	Namespace             string        `json:"namespace"`
	DefaultRequestTimeout corpusTimeout `json:"defaultRequestTimeout"`
	MaxRequestTimeout     corpusTimeout `json:"maxRequestTimeout"`
	SuffixTemplate        string        `json:"namespacedNameSuffixTemplate"`
}

func (c deployConfig) kservice() kservice.DeployConfig {
	return kservice.DeployConfig{
		Namespace:             c.Namespace,
		DefaultRequestTimeout: time.Duration(c.DefaultRequestTimeout),
		MaxRequestTimeout:     time.Duration(c.MaxRequestTimeout),
		SuffixTemplate:        c.SuffixTemplate,
	}
}

// corpusTimeout is a duration such as "5m0s".
type corpusTimeout time.Duration

func (d *corpusTimeout) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = corpusTimeout(parsed)
	return err
}

// deployStep is one thing that is done. App is there when it is about another app
// than the step before; Object is what a seed puts into the cluster.
type deployStep struct {
	Op     string               `json:"op"`
	App    json.RawMessage      `json:"app"`
	Object map[string]any       `json:"object"`
	Expect strict[deployExpect] `json:"expect"`
}

// deployExpect is how things are after a step.
type deployExpect struct {
	Error         string          `json:"error"`
	Panic         string          `json:"panic"`
	NotFound      bool            `json:"notFound"`
	KServiceName  string          `json:"kserviceName"`
	KService      json.RawMessage `json:"kservice"`
	RevisionsLeft []string        `json:"revisionsLeft"`
	Unstable      []string        `json:"unstable"`
}

// app is the app of a step, nil when it names none.
func (s deployStep) app(t *testing.T) *appv1.App {
	t.Helper()
	if len(s.App) == 0 {
		return nil
	}
	app := &appv1.App{}
	if err := protojson.Unmarshal(s.App, app); err != nil {
		t.Fatalf("read the app: %v", err)
	}
	return app
}

func appID(app *appv1.App) subjects.AppID {
	id := app.GetMetadata().GetId()
	return subjects.AppID{Project: id.GetProject(), Domain: id.GetDomain(), Name: id.GetName()}
}

// mergePatch applies a JSON merge patch (RFC 7386).
func mergePatch(object, patch map[string]any) map[string]any {
	if object == nil {
		object = map[string]any{}
	}
	for key, value := range patch {
		switch v := value.(type) {
		case nil:
			delete(object, key)
		case map[string]any:
			inner, _ := object[key].(map[string]any)
			object[key] = mergePatch(inner, v)
		default:
			object[key] = v
		}
	}
	return object
}
