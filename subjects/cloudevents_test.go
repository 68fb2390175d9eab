package subjects_test

import (
	"net/url"
	"regexp"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestEventKindType(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		kind subjects.EventKind
		want string
	}{
		{"created", subjects.Created, "org.flyte.app.created.v1"},
		{"updated", subjects.Updated, "org.flyte.app.updated.v1"},
		{"deleted", subjects.Deleted, "org.flyte.app.deleted.v1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := tc.kind.Type(); got != tc.want {
				t.Fatalf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, cluster, want string
	}{
		{"plain", "production", "/appbridge/production"},
		{"every unreserved class", "aZ09-._~", "/appbridge/aZ09-._~"},
		{"empty", "", "/appbridge/"},
		{"slash", "a/b", "/appbridge/a%2Fb"},
		{"space", "a b", "/appbridge/a%20b"},
		{"question mark and hash", "a?b#c", "/appbridge/a%3Fb%23c"},
		{"percent", "50%", "/appbridge/50%25"},
		{"not ASCII", "é", "/appbridge/%C3%A9"},
		{"newline", "a\n", "/appbridge/a%0A"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := subjects.Source(tc.cluster); got != tc.want {
				t.Fatalf("Source(%q) = %q, want %q", tc.cluster, got, tc.want)
			}
		})
	}
}

func FuzzSource(f *testing.F) {
	for _, s := range []string{"production", "", "a/b", "..", "%41", "é", "\xff", "a\r\nb", "?x#y", "//host"} {
		f.Add(s)
	}
	legal := regexp.MustCompile(`^/appbridge/(?:[A-Za-z0-9._~-]|%[0-9A-F]{2})*$`)
	f.Fuzz(func(t *testing.T, cluster string) {
		source := subjects.Source(cluster)
		if !legal.MatchString(source) {
			t.Fatalf("Source(%q) = %q", cluster, source)
		}
		u, err := url.Parse(source)
		if err != nil {
			t.Fatalf("parse %q: %v", source, err)
		}
		if want := (url.URL{Path: u.Path, RawPath: u.RawPath}); *u != want {
			t.Fatalf("%q has more than a path: %+v", source, u)
		}
		if got, want := u.Path, "/appbridge/"+cluster; got != want {
			t.Fatalf("%q names %q, want %q", source, got, want)
		}
	})
}
