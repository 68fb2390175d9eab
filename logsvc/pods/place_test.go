package pods

import (
	"encoding"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var _ interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
} = (*logPlace)(nil)

// The form of a place is a contract, as that of a position is.
func TestPlaceText(t *testing.T) {
	t.Parallel()
	p := trailOf(at(0, "one"), at(1, "two"), at(1, "")).position()
	const instance = "containerd://5f0d3b2d2f0e4d6f9a7b8c1e2d3f4a5b6c7d8e9f0a1b2c3d4e5f60718293a4b5"
	for _, test := range []struct {
		place logPlace
		want  string
	}{
		{logPlace{}, "AAAAAAAAAAA"},
		{logPlace{instance: instanceKey(instance)}, "W4soKEBTEpo"},
		{logPlace{instanceKey(instance), &p}, "W4soKEBTEpo.7LYZiJqwtyaCFjtm27tv-YIWO2bbu2_5ghY7Ztu7b_mCFjtm27tv-RicqwoRCaRAAAAAAAAAAAUC"},
	} {
		text, err := test.place.MarshalText()
		if err != nil || string(text) != test.want {
			t.Errorf("got %q, %v, want %q", text, err, test.want)
		}
		var got logPlace
		if err := got.UnmarshalText(text); err != nil || !cmp.Equal(got, test.place, cmp.AllowUnexported(logPlace{}, position{})) {
			t.Errorf("got %+v, %v, want %+v", got, err, test.place)
		}
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("AAAAAAAAAAA")
	f.Add("AAAAAAAAAAA.7LYZiJqwtyaCFjtm27tv-YIWO2bbu2_5ghY7Ztu7b_mCFjtm27tv-RicqwoRCaRAAAAAAAAAAAUC")
	f.Fuzz(func(t *testing.T, text string) {
		var p logPlace
		if p.UnmarshalText([]byte(text)) != nil {
			return
		}
		if out, err := p.MarshalText(); err != nil || string(out) != text {
			t.Fatalf("got %q, %v, want %q", out, err, text)
		}
	})
}
