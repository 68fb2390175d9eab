package services_test

import (
	"encoding/json"
	"testing"

	"github.com/appbridge/appbridge/testdata/services"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// The encoded spec of a sample and what is written out beside it are the same.
func TestSamplesAreWhatDeployWrites(t *testing.T) {
	all, err := services.All()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := len(all), 4; got != want {
		t.Errorf("%d samples, want %d", got, want)
	}
	for _, sample := range all {
		t.Run(sample.Name, func(t *testing.T) {
			app, err := testenv.AppOf(sample)
			if err != nil {
				t.Fatal(err)
			}
			want := app.Service()
			if got, want := asJSON(t, sample), asJSON(t, want); got != want {
				t.Errorf("sample = %s\nwant     %s", got, want)
			}
		})
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
