// Package corpus reads the conformance corpus: Knative Services and what Flyte v2
// makes of them. The README in its folder describes the files. What is here is
// what its readers share, the form of the cases and how to get at them; each does
// its own comparing.
//
// An expectation is read strictly: a key that is not known here fails, so that
// nothing in a grown corpus passes without being looked at.
package corpus

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/appbridge/appbridge/bridge/kservice"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

const (
	// DirEnv names the environment variable with the folder of the corpus. A
	// relative path starts at the root of the repository.
	DirEnv = "APPBRIDGE_CONFORMANCE_DIR"
	// DefaultDir is the folder when the variable is empty or not set.
	DefaultDir = "testdata/conformance"
	// DefaultsFile is a file like deploy.json, below the root of the repository,
	// with a made-up case: a default environment and service account.
	DefaultsFile = "testdata/testenv/corpus/testdata/deploy.json"
	// Namespace is the configured one, which the lists and replicas are held to.
	Namespace = "flyte"
)

// Dir is the folder of the corpus. root is the way to the root of the repository,
// such as "../..".
func Dir(root string) string {
	dir := os.Getenv(DirEnv)
	if dir == "" {
		dir = DefaultDir
	}
	if filepath.IsAbs(dir) {
		return dir
	}
	return filepath.Join(root, dir)
}

// ReadFile is what is in a file, which has to be there.
func ReadFile(tb testing.TB, path string) []byte {
	tb.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatalf("read the corpus: %v", err)
	}
	return data
}

// ReadList reads a file that is one array.
func ReadList[T any](tb testing.TB, path string) []T {
	tb.Helper()
	var out []T
	if err := json.Unmarshal(ReadFile(tb, path), &out); err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return out
}

// Each runs a subtest for each case of a file that is one array and is how many
// there are. A case that cannot be read fails its own subtest only.
func Each[T any](t *testing.T, path string, check func(t *testing.T, c T)) int {
	t.Helper()
	raws := ReadList[json.RawMessage](t, path)
	for _, raw := range raws {
		var named struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal(raw, &named); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		t.Run(named.Name, func(t *testing.T) {
			var c T
			if err := json.Unmarshal(raw, &c); err != nil {
				t.Fatal(err)
			}
			check(t, c)
		})
	}
	return len(raws)
}

// Strict is a value in whose JSON form a key that T does not know is an error.
type Strict[T any] struct{ Value T }

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Strict[T]) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	return dec.Decode(&s.Value)
}

// Config says what public URLs are made of.
type Config struct {
	BaseDomain string `json:"baseDomain"`
	Scheme     string `json:"scheme"`
	Port       int32  `json:"port"`
}

// KService is the same as package kservice takes it.
func (c Config) KService() kservice.Config {
	return kservice.Config{BaseDomain: c.BaseDomain, Scheme: c.Scheme, Port: c.Port}
}

// ID is the identifier of an app.
type ID struct {
	Org     string `json:"org"`
	Project string `json:"project"`
	Domain  string `json:"domain"`
	Name    string `json:"name"`
}

// AppID is the identifier as subjects have it, without the org.
func (i ID) AppID() subjects.AppID {
	return subjects.AppID{Project: i.Project, Domain: i.Domain, Name: i.Name}
}

// Message is the identifier as Apps have it.
func (i ID) Message() *appv1.Identifier {
	return &appv1.Identifier{Org: i.Org, Project: i.Project, Domain: i.Domain, Name: i.Name}
}

// NameCase is an entry of names.json. The name of the Knative Service is in base64
// when it is not UTF-8; there is either a public URL or none.
type NameCase struct {
	Name       string `json:"name"`
	Config     Config `json:"config"`
	Identifier ID     `json:"identifier"`
	Expect     Strict[struct {
		KServiceName       string `json:"kserviceName"`
		KServiceNameBase64 string `json:"kserviceNameBase64"`
		PublicURL          string `json:"publicUrl"`
		NoIngress          bool   `json:"noIngress"`
	}] `json:"expect"`
}

// ReplicasCase is an entry of replicas.json: what is in the cluster, in any
// namespace, and the replicas in the JSON form of their message, by name.
type ReplicasCase struct {
	Name       string            `json:"name"`
	Identifier ID                `json:"identifier"`
	KServices  []json.RawMessage `json:"kservices"`
	Pods       []json.RawMessage `json:"pods"`
	Expect     Strict[struct {
		Replicas []json.RawMessage `json:"replicas"`
	}] `json:"expect"`
}

// ListCase is an entry of list.json. An empty domain is any. Expect lists
// org/project/domain/name, sorted as lines.
type ListCase struct {
	Name      string            `json:"name"`
	Project   string            `json:"project"`
	Domain    string            `json:"domain"`
	KServices []json.RawMessage `json:"kservices"`
	Expect    []string          `json:"expect"`
}
