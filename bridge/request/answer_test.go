package request_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/bridge/request"
	"github.com/appbridge/appbridge/subjects"
)

// What others wrote does nothing to a terminal, and fits into a header.
func TestOneLine(t *testing.T) {
	t.Parallel()
	if got, want := request.OneLine("a\r\nb\x1b[31mc\u009bd\u2028e\xfff\tg"), "a b [31mc d e\uFFFDf g"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := request.OneLine(strings.Repeat("ä", 2000)); len(got) > 1100 || !strings.HasSuffix(got, "ä…") {
		t.Errorf("got %d bytes that end in %q", len(got), got[len(got)-8:])
	}
}

func TestPlainText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"plain", errors.New("no such\nthing"), "no such thing"},
		{"with an address", errors.New("cannot reach https://10.0.0.1:6443/api now"), "cannot reach now"},
		{"of another's connection", errors.New("Internal error: dial tcp 10.0.0.1:10250: connection refused"), "Internal error: dial tcp connection refused"},
		{"of a connection that breaks", errors.New("read tcp [::1]:4312->[::1]:10250: reset by peer"), "read tcp reset by peer"},
		{"of a request", &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: errors.New("connection refused")}, "connection refused"},
		{"of a connection", fmt.Errorf("ask: %w", &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, Err: errors.New("connection refused")}), "connection refused"},
		{"of a name", &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "api.example.com", Server: "10.0.0.1:53"}}, "lookup: no such host"},
		{"too late", fmt.Errorf("get: %w", context.DeadlineExceeded), "no answer in time"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := request.PlainText(tt.err); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Nobody may have a service write into another subject than an inbox.
func TestCheckReply(t *testing.T) {
	t.Parallel()
	for reply, want := range map[string]string{
		"":                                    request.NoReply,
		"_INBOX.abc.1":                        "",
		"_R_.abc":                             "",
		"_INBOX":                              request.ReplyRefused,
		"_INBOXES.a":                          request.ReplyRefused,
		"_INBOX.*":                            request.ReplyRefused,
		"_INBOX.>":                            request.ReplyRefused,
		"flyte.apps.events.a.b.c.created":     request.ReplyRefused,
		"$JS.API.STREAM.DELETE.FLYTE_APPS":    request.ReplyRefused,
		"_INBOX." + strings.Repeat("a", 1017): "",
		"_INBOX." + strings.Repeat("a", 1018): request.ReplyRefused,
	} {
		if got := request.CheckReply("_INBOX", reply); got != want {
			t.Errorf("%q: got %q, want %q", reply, got, want)
		}
	}
}

func TestErrorf(t *testing.T) {
	t.Parallel()
	err := request.Errorf(subjects.CodeNotFound, "app: no app %s", "a/b/c")
	if err.Code != subjects.CodeNotFound || err.Error() != "app: no app a/b/c" {
		t.Errorf("got %d %q", err.Code, err)
	}
}
