package subjects_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func newSubjects(tb testing.TB, prefix string) subjects.Subjects {
	tb.Helper()
	s, err := subjects.New(prefix)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestSubjectsRefuse(t *testing.T) {
	t.Parallel()
	s := newSubjects(t, "flyte.apps")
	id := subjects.AppID{Project: "p", Domain: "d", Name: "n"}
	long := strings.Repeat("x", subjects.MaxKeyBytes)
	second := func(_ string, err error) error { return err }
	for _, tc := range []struct {
		name string
		got  error
		want error
	}{
		{"event without kind", second(s.Event(id, "")), subjects.ErrInvalidName},
		{"event of an unknown kind", second(s.Event(id, "*")), subjects.ErrInvalidName},
		{"event without id", second(s.Event(subjects.AppID{}, subjects.Created)), subjects.ErrEmptyPart},
		{"filter without id", second(s.EventFilter(subjects.AppID{})), subjects.ErrEmptyPart},
		{"logs of an unknown operation", second(s.Logs("out", id)), subjects.ErrInvalidName},
		{"logs without id", second(s.Logs(subjects.LogGet, subjects.AppID{})), subjects.ErrEmptyPart},
		{"log filter of an unknown operation", second(s.LogsFilter(">")), subjects.ErrInvalidName},
		{"log stream without project", second(s.LogsOut("", "x")), subjects.ErrEmptyPart},
		{"log stream without id", second(s.LogsStop("p", "")), subjects.ErrEmptyPart},
		{"log stream too long", second(s.LogsOut("p", long)), subjects.ErrTooLong},
		{"log acknowledgement without token", second(s.LogsAck("p", "x", "")), subjects.ErrEmptyPart},
		{"log acknowledgements without id", second(s.LogsAckFilter("p", "")), subjects.ErrEmptyPart},
		{"operation unknown", second(s.API("list", id)), subjects.ErrInvalidName},
		{"operation without id", second(s.API(subjects.APIGet, subjects.AppID{})), subjects.ErrEmptyPart},
		{"operation filter unknown", second(s.APIFilter("")), subjects.ErrInvalidName},
		{"list of a domain alone", second(s.APIList("", "d")), subjects.ErrEmptyPart},
		{"list too long", second(s.APIList("p", long)), subjects.ErrTooLong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if !errors.Is(tc.got, tc.want) {
				t.Fatalf("got %v, want %v", tc.got, tc.want)
			}
		})
	}
}

func TestParseSubjectsRefuse(t *testing.T) {
	t.Parallel()
	s := newSubjects(t, "flyte.apps")
	for _, subject := range []string{
		"",
		"flyte.apps",
		"flyte.apps.events",
		"flyte.apps.events.",
		"flyte.apps.events.>",
		"flyte.apps.events.*",
		"flyte.apps.events.lost.",
		"flyte.apps.events.lost.>",
		"flyte.apps.events.lost.notice",
		"flyte.apps.events.Lost",
		"flyte.apps.events.notice.p",
		"flyte.apps.events.notices",
		"other.apps.events.notice",
		"flyte.apps.lost",
		"flyte.apps.events.p.d.n",
		"flyte.apps.events.p.d.n.*",
		"flyte.apps.events.p.d.n.moved",
		"flyte.apps.events.p.d.n.Created",
		"flyte.apps.events.p.d.n.x.created",
		"flyte.apps.events.p.d.created",
		"flyte.apps.events.p.d..created",
		"flyte.apps.events.p.d.=6e.created",
		"flyte.apps.events.p.d.n.created.",
		"other.apps.events.p.d.n.created",
		"flyte.apps2.events.p.d.n.created",
		"xflyte.apps.events.p.d.n.created",
		"Flyte.apps.events.p.d.n.created",
		"flyte.apps.logs.get.p.d",
		"flyte.apps.logs.get",
		"flyte.apps.logs.out.p.d.n",
		"flyte.apps.logs.out.p",
		"flyte.apps.logs.stop.p.",
		"flyte.apps.logs.stop.p.*",
		"flyte.apps.api.get.p.d.*",
		"flyte.apps.api.list.",
		"flyte.apps.api.list.>",
		"flyte.apps.api.list.p.d.n",
		"flyte.apps.api.list..d",
		"flyte.apps.api.LIST",
		"flyte.apps.api.drop.p.d.n",
	} {
		t.Run(subject, func(t *testing.T) {
			t.Parallel()
			for family, err := range parseAll(s, subject) {
				if err == nil {
					t.Errorf("%s accepts %q", family, subject)
				} else if !errors.Is(err, subjects.ErrMalformed) && !errors.Is(err, subjects.ErrInvalidName) {
					t.Errorf("%s %q: %v wraps neither ErrMalformed nor ErrInvalidName", family, subject, err)
				}
			}
		})
	}
}

// parseAll gives the subject to every parser, and checks that the one that
// accepts it would have written it. It returns the error of each family.
func parseAll(s subjects.Subjects, subject string) map[string]error {
	errs := map[string]error{}
	check := func(family string, err error, rebuild func() (string, error)) {
		if err == nil {
			if again, err := rebuild(); err != nil || again != subject {
				err = fmt.Errorf("%s accepts %q and writes %q, %w", family, subject, again, err)
				panic(err)
			}
		}
		errs[family] = err
	}
	id, kind, err := s.ParseEvent(subject)
	check("event", err, func() (string, error) { return s.Event(id, kind) })
	check("lost", isOne(s.IsLost(subject)), func() (string, error) { return s.Lost(), nil })
	check("notice", isOne(s.IsNotice(subject)), func() (string, error) { return s.Notice(), nil })
	logOp, logID, err := s.ParseLogs(subject)
	check("logs", err, func() (string, error) { return s.Logs(logOp, logID) })
	outProject, out, err := s.ParseLogsOut(subject)
	check("out", err, func() (string, error) { return s.LogsOut(outProject, out) })
	stopProject, stop, err := s.ParseLogsStop(subject)
	check("stop", err, func() (string, error) { return s.LogsStop(stopProject, stop) })
	ackProject, ackStream, token, err := s.ParseLogsAck(subject)
	check("ack", err, func() (string, error) { return s.LogsAck(ackProject, ackStream, token) })
	apiOp, apiID, err := s.ParseAPI(subject)
	check("api", err, func() (string, error) { return s.API(apiOp, apiID) })
	project, domain, err := s.ParseAPIList(subject)
	check("list", err, func() (string, error) { return s.APIList(project, domain) })
	key, err := subjects.ParseBucketSubject("flyte-apps", subject)
	check("bucket", err, func() (string, error) { return subjects.BucketSubject("flyte-apps", key), nil })
	return errs
}

// isOne is what a parser returns that has nothing to return.
func isOne(is bool) error {
	if is {
		return nil
	}
	return subjects.ErrMalformed
}

// allSubjects builds every subject there is for the id and the stream id.
func allSubjects(tb testing.TB, s subjects.Subjects, id subjects.AppID, streamID string) map[string]string {
	tb.Helper()
	all := map[string]string{}
	add := func(name, family string) func(string, error) {
		return func(subject string, err error) {
			if err != nil {
				tb.Fatalf("%s of %q: %v", name, id, err)
			}
			if other, dup := all[subject]; dup {
				tb.Fatalf("%s and %s share the subject %q", name, other, subject)
			}
			all[subject] = family
		}
	}
	for _, kind := range []subjects.EventKind{subjects.Created, subjects.Updated, subjects.Deleted} {
		add(string(kind), "event")(s.Event(id, kind))
	}
	add("filler", "lost")(s.Lost(), nil)
	add("notice", "notice")(s.Notice(), nil)
	for _, op := range []subjects.LogOp{subjects.LogGet, subjects.LogTail, subjects.LogOpen} {
		add("logs "+string(op), "logs")(s.Logs(op, id))
	}
	for _, op := range []subjects.APIOp{
		subjects.APIGet, subjects.APIReplicas, subjects.APIIngress, subjects.APIDeploy,
		subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica,
	} {
		add("api "+string(op), "api")(s.API(op, id))
	}
	add("out", "out")(s.LogsOut(id.Project, streamID))
	add("ack", "ack")(s.LogsAck(id.Project, streamID, "7"))
	add("ack of the server", "ack")(s.LogsAck(id.Project, streamID, "trace"))
	add("stop", "stop")(s.LogsStop(id.Project, streamID))
	add("list all", "list")(s.APIList("", ""))
	add("list project", "list")(s.APIList(id.Project, ""))
	add("list domain", "list")(s.APIList(id.Project, id.Domain))
	key, err := id.Key()
	add("bucket", "bucket")(subjects.BucketSubject("flyte-apps", key), err)
	return all
}

// requireOneParser fails unless each subject is accepted by the parser of its
// own family alone.
func requireOneParser(tb testing.TB, s subjects.Subjects, all map[string]string) {
	tb.Helper()
	for subject, family := range all {
		for name, err := range parseAll(s, subject) {
			if (err == nil) != (name == family) {
				tb.Errorf("%q is a subject of %s; parser of %s: %v", subject, family, name, err)
			}
		}
	}
}

// Ids made to be mistaken for another family, an operation or a kind.
func TestNoFamilyTakesAnothersSubject(t *testing.T) {
	t.Parallel()
	s := newSubjects(t, "flyte.apps")
	for _, id := range []subjects.AppID{
		{Project: "shop", Domain: "production", Name: "checkout"},
		{Project: "out", Domain: "stop", Name: "get"},
		{Project: "list", Domain: "list", Name: "list"},
		{Project: "created", Domain: "updated", Name: "deleted"},
		{Project: "events", Domain: "logs", Name: "api"},
		{Project: "lost", Domain: "notice", Name: "lost"},
		{Project: "notice", Domain: "lost", Name: "notice"},
		{Project: "$KV", Domain: "flyte-apps", Name: "*"},
	} {
		t.Run(id.String(), func(t *testing.T) {
			t.Parallel()
			requireOneParser(t, s, allSubjects(t, s, id, "created"))
		})
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	s := newSubjects(t, "flyte.apps")
	id := subjects.AppID{Project: "p.q", Domain: "d", Name: "a*"}
	must := func(subject string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return subject
	}
	for _, tc := range []struct {
		name, got, want string
	}{
		{"prefix", s.Prefix(), "flyte.apps"},
		{"events", s.Events(), "flyte.apps.events.>"},
		{"fillers", s.Lost(), "flyte.apps.events.lost"},
		{"notices", s.Notice(), "flyte.apps.events.notice"},
		{"one app", must(s.EventFilter(id)), "flyte.apps.events.p=2Eq.d.a=2A.*"},
		{"logs", must(s.LogsFilter(subjects.LogOpen)), "flyte.apps.logs.open.*.*.*"},
		{"api", must(s.APIFilter(subjects.APIDeploy)), "flyte.apps.api.deploy.*.*.*"},
		{"lists", strings.Join(s.APIListFilters(), " "), "flyte.apps.api.list flyte.apps.api.list.* flyte.apps.api.list.*.*"},
		{"bucket", subjects.BucketFilter("b"), "$KV.b.>"},
		{"entry here", subjects.InDomain("", "$KV.b.p.d.a"), "$KV.b.p.d.a"},
		{"entry in a domain", subjects.InDomain("hub", "$KV.b.p.d.a"), "$JS.hub.API.$KV.b.p.d.a"},
		{"event in a domain", subjects.InDomain("hub", "flyte.apps.events.p.d.a.created"), "flyte.apps.events.p.d.a.created"},
		{"message here", subjects.ReadMessage("", "S"), "$JS.API.STREAM.MSG.GET.S"},
		{"pull in a domain", subjects.PullMessages("hub", "S", "c"), "$JS.hub.API.CONSUMER.MSG.NEXT.S.c"},
		{"message in a domain", subjects.ReadMessage("hub", "S"), "$JS.hub.API.STREAM.MSG.GET.S"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.got != tc.want {
				t.Fatalf("got %q, want %q", tc.got, tc.want)
			}
		})
	}
}

func TestParseBucketSubject(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, bucket, subject, want string
		is                          error
	}{
		{"app", "flyte-apps", "$KV.flyte-apps.p.d.n=2E", "p.d.n=2E", nil},
		{"foreign key", "flyte-apps", "$KV.flyte-apps.a/b=", "a/b=", nil},
		{"other bucket", "flyte", "$KV.flyte-apps.p.d.n", "", subjects.ErrMalformed},
		{"no key", "flyte-apps", "$KV.flyte-apps", "", subjects.ErrMalformed},
		{"empty key", "flyte-apps", "$KV.flyte-apps.", "", subjects.ErrMalformed},
		{"leading dot", "flyte-apps", "$KV.flyte-apps..p", "", subjects.ErrMalformed},
		{"trailing dot", "flyte-apps", "$KV.flyte-apps.p.", "", subjects.ErrMalformed},
		{"two dots", "flyte-apps", "$KV.flyte-apps.p..n", "", subjects.ErrMalformed},
		{"wildcard", "flyte-apps", "$KV.flyte-apps.>", "", subjects.ErrMalformed},
		{"space", "flyte-apps", "$KV.flyte-apps.a b", "", subjects.ErrMalformed},
		{"event", "flyte-apps", "flyte.apps.events.p.d.n.created", "", subjects.ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := subjects.ParseBucketSubject(tc.bucket, tc.subject)
			if got != tc.want || !errors.Is(err, tc.is) {
				t.Fatalf("got %q, %v, want %q, %v", got, err, tc.want, tc.is)
			}
		})
	}
}

func FuzzSubjects(f *testing.F) {
	f.Add("shop", "production", "checkout", "Vq2dG0", "shop", "production", "Checkout")
	f.Add("a.b", "c", "d", "*", "a", "b.c", "d")
	f.Add("\xff", "é", " ", "\x00", ">", "*", "=")
	f.Add("list", "out", "get", "created", "stop", "list", "logs")
	f.Add("lost", "notice", "lost", "lost", "notice", "lost", "created")
	f.Fuzz(func(t *testing.T, p, d, n, stream, p2, d2, n2 string) {
		s := newSubjects(t, "flyte.apps")
		id, other := subjects.AppID{Project: p, Domain: d, Name: n}, subjects.AppID{Project: p2, Domain: d2, Name: n2}
		if id.Validate() != nil || other.Validate() != nil || stream == "" {
			return
		}
		if _, err := s.LogsOut(p, stream); errors.Is(err, subjects.ErrTooLong) {
			return
		}
		key, err := id.Key()
		if err != nil {
			t.Fatal(err)
		}
		tokens := strings.Split(key, ".")
		if len(tokens) != 3 {
			t.Fatalf("key %q has %d tokens", key, len(tokens))
		}
		for _, token := range tokens {
			requireToken(t, token)
		}
		if back, err := subjects.ParseKey(key); err != nil || back != id {
			t.Fatalf("ParseKey(%q) = %q, %v, want %q", key, back, err, id)
		}
		all := allSubjects(t, s, id, stream)
		requireOneParser(t, s, all)
		for subject, family := range all {
			requireID(t, s, subject, family, id, stream)
		}
		if id == other {
			return
		}
		// Only subjects that do not name the whole id may be shared by two ids.
		for subject, family := range allSubjects(t, s, other, stream) {
			shared := slices.Contains([]string{"list", "out", "stop", "ack", "lost", "notice"}, family)
			if _, dup := all[subject]; dup && !shared {
				t.Errorf("%q and %q share the subject %q", id, other, subject)
			}
		}
	})
}

// requireID fails unless the subject parses to what it was built from.
func requireID(tb testing.TB, s subjects.Subjects, subject, family string, id subjects.AppID, stream string) {
	tb.Helper()
	got, project, streamID := id, id.Project, stream
	switch family {
	case "event":
		got, _, _ = s.ParseEvent(subject)
	case "logs":
		_, got, _ = s.ParseLogs(subject)
	case "api":
		_, got, _ = s.ParseAPI(subject)
	case "out":
		project, streamID, _ = s.ParseLogsOut(subject)
	case "ack":
		project, streamID, _, _ = s.ParseLogsAck(subject)
	case "stop":
		project, streamID, _ = s.ParseLogsStop(subject)
	case "bucket":
		key, _ := subjects.ParseBucketSubject("flyte-apps", subject)
		got, _ = subjects.ParseKey(key)
	case "list":
		listed, domain, _ := s.ParseAPIList(subject)
		if listed != "" && listed != id.Project || domain != "" && domain != id.Domain {
			tb.Errorf("%q parses to %q %q, built from %q", subject, listed, domain, id)
		}
	}
	if got != id || project != id.Project || streamID != stream {
		tb.Errorf("%q parses to %q, project %q, stream %q; built from %q, stream %q", subject, got, project, streamID, id, stream)
	}
}

func FuzzParseSubject(f *testing.F) {
	s := newSubjects(f, "flyte.apps")
	for subject := range allSubjects(f, s, subjects.AppID{Project: "p.", Domain: "d", Name: "é"}, "x") {
		f.Add("flyte.apps", subject)
	}
	f.Add("a", "a.events.a.events.p.d.created")
	f.Add("a", "a.api.list.list")
	f.Add("x.*", "$KV.flyte-apps.>")
	f.Add("a", "a.events.lost.d.n.created")
	f.Add("a.events", "a.events.lost")
	f.Fuzz(func(t *testing.T, prefix, subject string) {
		s, err := subjects.New(prefix)
		if err != nil {
			return
		}
		accepted := 0
		for family, err := range parseAll(s, subject) {
			if err == nil {
				accepted++
			} else if !errors.Is(err, subjects.ErrMalformed) && !errors.Is(err, subjects.ErrInvalidName) {
				t.Errorf("%s %q: %v wraps neither ErrMalformed nor ErrInvalidName", family, subject, err)
			}
		}
		if accepted > 1 {
			t.Errorf("%d families accept %q", accepted, subject)
		}
	})
}
