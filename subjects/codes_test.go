package subjects_test

import (
	"errors"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestCodes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		code  subjects.Code
		value string
	}{
		{"InvalidArgument", subjects.CodeInvalidArgument, "400"},
		{"PermissionDenied", subjects.CodePermissionDenied, "403"},
		{"NotFound", subjects.CodeNotFound, "404"},
		{"FailedPrecondition", subjects.CodeFailedPrecondition, "409"},
		{"ResourceExhausted", subjects.CodeResourceExhausted, "429"},
		{"Internal", subjects.CodeInternal, "500"},
		{"Unavailable", subjects.CodeUnavailable, "502"},
		{"DeadlineExceeded", subjects.CodeDeadlineExceeded, "504"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := tc.code.String(); got != tc.name {
				t.Errorf("String() = %q, want %q", got, tc.name)
			}
			if got := tc.code.HeaderValue(); got != tc.value {
				t.Errorf("HeaderValue() = %q, want %q", got, tc.value)
			}
			if got, err := subjects.ParseCode(tc.value); err != nil || got != tc.code {
				t.Errorf("ParseCode(%q) = %v, %v, want %v", tc.value, got, err, tc.code)
			}
		})
	}
}

func TestParseCodeRefuses(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"", "0", "418", "0404", "+404", " 404", "404 ", "NotFound", "503"} {
		got, err := subjects.ParseCode(value)
		if !errors.Is(err, subjects.ErrMalformed) || got != 0 {
			t.Errorf("ParseCode(%q) = %v, %v, want ErrMalformed", value, got, err)
		}
	}
	if got, want := subjects.Code(418).String(), "Code(418)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
