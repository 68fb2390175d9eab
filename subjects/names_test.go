package subjects_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestValidatePrefix(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, prefix string
		is           error
	}{
		{"default", subjects.DefaultPrefix, nil},
		{"one token", "apps", nil},
		{"every class", "aZ-0_9.b.c", nil},
		{"as long as it may be", strings.Repeat("p", subjects.MaxPrefixBytes), nil},
		{"empty", "", subjects.ErrEmptyPart},
		{"leading dot", ".apps", subjects.ErrEmptyPart},
		{"trailing dot", "flyte.", subjects.ErrEmptyPart},
		{"two dots", "flyte..apps", subjects.ErrEmptyPart},
		{"dot alone", ".", subjects.ErrEmptyPart},
		{"star", "flyte.*", subjects.ErrInvalidName},
		{"greater", "flyte.>", subjects.ErrInvalidName},
		{"space", "flyte apps", subjects.ErrInvalidName},
		{"newline", "flyte\n", subjects.ErrInvalidName},
		{"not ASCII", "flyté", subjects.ErrInvalidName},
		{"equals", "a=b", subjects.ErrInvalidName},
		{"the server's own", "$JS.API", subjects.ErrInvalidName},
		{"dollar inside", "a.$b", subjects.ErrInvalidName},
		{"too long", strings.Repeat("p", subjects.MaxPrefixBytes+1), subjects.ErrTooLong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := subjects.ValidatePrefix(tc.prefix)
			if !errors.Is(err, tc.is) {
				t.Fatalf("ValidatePrefix(%q) = %v, want %v", tc.prefix, err, tc.is)
			}
			if err != nil && !strings.HasPrefix(err.Error(), `subject prefix "`) {
				t.Fatalf("error does not name the value: %v", err)
			}
			if _, newErr := subjects.New(tc.prefix); (newErr == nil) != (err == nil) {
				t.Fatalf("New(%q): %v, ValidatePrefix: %v", tc.prefix, newErr, err)
			}
		})
	}
}

func TestValidateStreamBucketAndDomain(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, value string
		is          error
	}{
		{"default stream", subjects.DefaultStream, nil},
		{"default bucket", subjects.DefaultBucket, nil},
		{"every class", "aZ-0_9", nil},
		{"empty", "", subjects.ErrEmptyPart},
		{"dot", "a.b", subjects.ErrInvalidName},
		{"star", "*", subjects.ErrInvalidName},
		{"greater", ">", subjects.ErrInvalidName},
		{"space", "a b", subjects.ErrInvalidName},
		{"slash", "a/b", subjects.ErrInvalidName},
		{"equals", "a=b", subjects.ErrInvalidName},
		{"not ASCII", "é", subjects.ErrInvalidName},
		{"too long", strings.Repeat("n", 256), subjects.ErrTooLong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if err := subjects.ValidateStream(tc.value); !errors.Is(err, tc.is) {
				t.Errorf("ValidateStream(%q) = %v, want %v", tc.value, err, tc.is)
			}
			if err := subjects.ValidateBucket(tc.value); !errors.Is(err, tc.is) {
				t.Errorf("ValidateBucket(%q) = %v, want %v", tc.value, err, tc.is)
			}
			if err := subjects.ValidateDomain(tc.value); !errors.Is(err, tc.is) {
				t.Errorf("ValidateDomain(%q) = %v, want %v", tc.value, err, tc.is)
			}
		})
	}
	// The bucket's stream has a longer name than the bucket.
	bucket := strings.Repeat("b", subjects.MaxBucketBytes)
	if err := subjects.ValidateBucket(bucket); err != nil {
		t.Errorf("longest bucket: %v", err)
	}
	if err := subjects.ValidateStream(subjects.BucketStream(bucket)); err != nil {
		t.Errorf("stream of the longest bucket: %v", err)
	}
	if err := subjects.ValidateBucket(bucket + "b"); !errors.Is(err, subjects.ErrTooLong) {
		t.Errorf("bucket one byte too long: %v", err)
	}
}

func FuzzValidatePrefix(f *testing.F) {
	for _, s := range []string{"flyte.apps", "", ".", "a..b", "$JS", "*", "a.>", "é", "a b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, prefix string) {
		if subjects.ValidatePrefix(prefix) != nil {
			return
		}
		for token := range strings.SplitSeq(prefix, ".") {
			requireToken(t, token)
			if strings.Contains(token, "=") {
				t.Fatalf("prefix %q has an equals sign", prefix)
			}
		}
		s := newSubjects(t, prefix)
		id := subjects.AppID{Project: "p.", Domain: "d", Name: "n"}
		requireOneParser(t, s, allSubjects(t, s, id, "x"))
	})
}
