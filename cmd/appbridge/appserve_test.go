package main

import (
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/appbridge/appbridge/bridge/appsvc"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestWarnOfGuests(t *testing.T) {
	for _, test := range []struct {
		address string
		writes  bool
		want    int
	}{
		{"127.0.0.1", true, 0},
		{"::1", true, 0},
		{"0.0.0.0", false, 1},
		{"0.0.0.0", true, 2},
		{"192.0.2.1", true, 2},
	} {
		core, logs := observer.New(zapcore.WarnLevel)
		warnOfGuests(zap.New(core), &net.TCPAddr{IP: net.ParseIP(test.address), Port: 4222}, test.writes)
		if got := logs.Len(); got != test.want {
			t.Errorf("%s, writes %t: got %d warnings, want %d", test.address, test.writes, got, test.want)
		}
		if got, want := logs.FilterMessageSnippet("delete apps").Len() == 1, test.want == 2; got != want {
			t.Errorf("%s, writes %t: got a warning of writes %t, want %t", test.address, test.writes, got, want)
		}
	}
}

// TestServeAnswersForApps: `serve` offers every operation, and says whether it
// serves those that change apps.
func TestServeAnswersForApps(t *testing.T) {
	t.Parallel()
	names, err := subjects.New("other.prefix")
	if err != nil {
		t.Fatal(err)
	}
	want := names.APIListFilters()
	for _, op := range []subjects.APIOp{
		subjects.APIGet, subjects.APIReplicas, subjects.APIIngress, subjects.APIDeploy, subjects.APIStop, subjects.APIDelete, subjects.APIDeleteReplica,
	} {
		filter, err := names.APIFilter(op)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, filter)
	}
	slices.Sort(want)
	infoSubject, err := micro.ControlSubject(micro.InfoVerb, appsvc.ServiceName, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, writes := range []bool{false, true} {
		t.Run("writes "+strconv.FormatBool(writes), func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Prefix, cfg.ClusterName, cfg.EnableWrites = names.Prefix(), "blue", writes
			cfg.Deploy.DefaultRequestTimeout = 2 * time.Hour
			core, logs := observer.New(zapcore.InfoLevel)
			s := startServing(t, cfg, fakeBridge{run: untilDone}, zap.New(core))
			nc, err := nats.Connect(s.natsURLs[0], nats.Timeout(suite.Patience))
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			var info micro.Info
			waitFor(t, "every endpoint", func() bool {
				m, err := nc.Request(infoSubject, nil, time.Second)
				if err != nil {
					return false
				}
				info = micro.Info{}
				if err := json.Unmarshal(m.Data, &info); err != nil {
					t.Fatal(err)
				}
				return len(info.Endpoints) == len(want) // they are added one by one
			})
			var got []string
			for _, endpoint := range info.Endpoints {
				got = append(got, endpoint.Subject)
			}
			slices.Sort(got)
			if diff := cmp.Diff(got, want); diff != "" {
				t.Errorf("endpoints: got - want +:\n%s", diff)
			}
			if got, want := info.Metadata["cluster"]+" "+info.Metadata["writes"], "blue "+strconv.FormatBool(writes); got != want {
				t.Errorf("got metadata of %q, want %q", got, want)
			}
			if got, want := logs.FilterMessageSnippet("writes are on").Len() == 1, writes; got != want {
				t.Errorf("got a line that writes are on: %t, want %t", got, want)
			}
			if got, want := logs.FilterMessageSnippet("writes are off").Len() == 1, !writes; got != want {
				t.Errorf("got a line that writes are off: %t, want %t", got, want)
			}
			if got, want := logs.FilterLevelExact(zapcore.WarnLevel).FilterMessageSnippet("apps without a request timeout cannot be deployed").Len() == 1, writes; got != want {
				t.Errorf("got a warning of the default timeout: %t, want %t", got, want)
			}
			// The bridge is the cache: what it says is what the requester hears.
			id := subjects.AppID{Project: "shop", Domain: "production", Name: "search"}
			subject, err := names.API(subjects.APIGet, id)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := nc.Request(subject, nil, suite.Patience)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := string(answer.Data), errUnsynced; !strings.Contains(got, want) {
				t.Errorf("got the answer %q, want %q in it", got, want)
			}
			s.stop()
			if err := s.wait(t); err != nil {
				t.Error(err)
			}
		})
	}
}
