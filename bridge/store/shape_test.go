package store

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app/encodertest"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func testShape(domain string) Shape {
	return Shape{ShapeBaseDomain: domain, ShapeScheme: "https", ShapeIngressPort: "0", ShapeEncoding: "json", ShapePodConditions: "false"}
}

func FuzzShape(f *testing.F) {
	for _, text := range []string{"", ";", "=", "a=b", testShape("apps.example.com").String(), "redact-env=%3B%3D%25;a=", "a=%", "base-domain"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, ok := parseShape(text)
		if !ok {
			return
		}
		if again, ok := parseShape(s.String()); len(s.String()) <= maxShapeBytes && (!ok || !maps.Equal(again, s)) {
			t.Errorf("%q is %v, and %q is %v", text, s, s.String(), again)
		}
	})
}

func TestShapeDifferences(t *testing.T) {
	with := func(s Shape, name, value string) Shape {
		s = maps.Clone(s)
		s[name] = value
		return s
	}
	a := testShape("apps.example.com")
	for _, test := range []struct {
		name        string
		here, there Shape
		want        string
	}{
		{"none", a, testShape("apps.example.com"), "[]"},
		{"one", a, testShape("new.example.com"), "[{base-domain apps.example.com new.example.com}]"},
		{"two", a, with(with(a, ShapeEncoding, "protobuf"), ShapePodConditions, "true"), "[{encoding json protobuf} {pod-conditions false true}]"},
		{"a URL that no app has", testShape(""), with(with(testShape(""), ShapeScheme, "http"), ShapeIngressPort, "81"), "[]"},
		{"an unknown option that is off", a, with(a, "redact-env", ""), "[]"},
		{"an unknown option that is on", a, with(a, "redact-env", "default"), "[{redact-env  default}]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := fmt.Sprint(test.here.differences(test.there)); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// Of two claims the one that was written last counts, whatever an answer of an earlier time shows.
func TestClaims(t *testing.T) {
	nc := connectTo(t, suite.NATS(t, &server.Options{JetStream: true, StoreDir: t.TempDir()}).ClientURL())
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(suite.Patience))
	if err != nil {
		t.Fatal(err)
	}
	storage := New(js, encodertest.New().Subjects, Config{
		Stream: subjects.DefaultStream, Bucket: subjects.DefaultBucket, Prefix: subjects.DefaultPrefix, ClusterName: "test", ClusterUID: "c1", Replicas: 1,
	}, zap.NewNop())
	if err := errors.Join(storage.Inspect(t.Context()), storage.Identify(Checkpoint{}, 0), storage.Establish(t.Context(), Checkpoint{})); err != nil {
		t.Fatal(err)
	}
	claim := func(c *Claim) *jetstream.StreamInfo {
		t.Helper()
		if err := storage.Claim(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return storage.Stream
	}
	check := func(name string, c *Claim, info *jetstream.StreamInfo, rival, yields bool) {
		t.Helper()
		got, err := c.Check(info)
		if isOther := errors.As(err, new(*OtherShapeError)); got != rival || isOther != yields {
			t.Errorf("%s: a rival: %t, want %t; an error: %v, want one: %t", name, got, rival, err, yields)
		}
	}
	older, newer := NewClaim(testShape("a"), true), NewClaim(testShape("b"), true)
	before := claim(older)
	check("the own claim", older, before, false, false)
	check("nothing is claimed yet", newer, before, false, false)
	after := claim(newer)
	check("the claim that was replaced", newer, before, false, false)
	check("the newer claim", older, after, false, true)
	if err := storage.Claim(t.Context(), older); !errors.As(err, new(*OtherShapeError)) {
		t.Errorf("the older one claims again: %v", err)
	}

	// The stream was put back: both may claim again, and the later one counts.
	older.Forget()
	put := claim(older)
	check("claimed again", older, put, false, false)
	check("the other one claimed again", newer, put, false, true)

	// The same shape is a rival, once. Its answer is another one, and is not answered.
	rival := NewClaim(testShape("a"), true)
	found := claim(rival)
	check("a rival", older, found, true, false)
	check("the rival again", older, found, false, false)
	answer := func(c *Claim) string {
		t.Helper()
		if err := storage.Answer(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		return metadataOf(storage.Stream, subjects.MetadataShapeOf)
	}
	answered := answer(older)
	check("the answer", rival, storage.Stream, true, false)
	if again := answer(rival); again != answered {
		t.Errorf("the answer %s was answered with %s", answered, again)
	}
	// One that does not renew takes what is there.
	if quiet := NewClaim(testShape("a"), false); metadataOf(claim(quiet), subjects.MetadataShapeOf) != answered {
		t.Error("the same shape was written again")
	}

	// Bridges that share a claim, as the replicas of a Lease and the leaders of two do: one that renews
	// it is found by the others, and is answered.
	one, two := NewClaim(testShape("a"), false), NewClaim(testShape("a"), false)
	claim(one)
	after = claim(two)
	check("the same claim", one, after, false, false)
	two.Renew()
	check("renewed", one, claim(two), true, false)
	renewed := metadataOf(storage.Stream, subjects.MetadataShapeOf)
	if again := metadataOf(claim(two), subjects.MetadataShapeOf); again != renewed {
		t.Error("one renewal was written twice")
	}
	answer(one)
	check("the answer to the renewal", two, storage.Stream, true, false)
	if metadataOf(claim(two), subjects.MetadataShapeOf) == renewed {
		t.Error("the answer was not written")
	}
	// A renewal does not replace a newer claim with another shape.
	other := NewClaim(testShape("b"), true)
	claim(other)
	one.Renew()
	if err := storage.Claim(t.Context(), one); !errors.As(err, new(*OtherShapeError)) {
		t.Errorf("a renewal replaced a newer claim: %v", err)
	}
}
