package app

import (
	"slices"
	"strings"
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

func TestCheckHistory(t *testing.T) {
	const digits12, digits13, digits14 = "999999999999", "9999999999999", "99999999999999"
	update := func(version string) *Record { return &Record{Sequence: 9, ResourceVersion: version} }
	deleted := func(versions ...string) (d Deletions) {
		for i, version := range versions {
			d.Note(testID, version, uint64(20+i))
		}
		return d
	}
	for _, test := range []struct {
		name       string
		record     *Record
		deleted    Deletions
		listed     string
		ok         bool
		impossible []uint64
	}{
		{"older", update("99"), Deletions{}, "100", true, nil},
		{"the same", update("100"), Deletions{}, "100", true, nil},
		{"ahead", update("101"), Deletions{}, "100", false, nil},
		{"ahead, of a history that is over", &Record{Sequence: 5, ResourceVersion: "101"}, Deletions{}, "100", true, nil},
		{"a delete ahead", &Record{Sequence: 9, Kind: subjects.Deleted, ResourceVersion: "50", DeletedVersion: "101"}, Deletions{}, "100", false, nil},
		{"a delete that was not seen", &Record{Sequence: 9, Kind: subjects.Deleted, ResourceVersion: "101"}, Deletions{}, "100", true, nil},
		{"longer numbers", update("99"), Deletions{}, "1000", true, nil},
		{"damaged", &Record{Damaged: true}, Deletions{}, "100", true, nil},
		{"as far as a cluster gets", update(digits12), Deletions{}, "100", false, nil},
		{"what no cluster has", update(digits13), Deletions{}, "100", true, []uint64{9}},
		{"more than any number", update(strings.Repeat("9", 4000)), Deletions{}, "100", true, []uint64{9}},
		{"no number", update("1e20"), Deletions{}, "100", true, nil},
		{"a cluster that counts in microseconds", update("1800000000000001"), Deletions{}, "1800000000000000", false, nil},
		{"ten times what such a cluster has", update(digits14 + "999"), Deletions{}, "1800000000000000", false, nil},
		{"more than that", update("1" + digits14 + "999"), Deletions{}, "1800000000000000", true, []uint64{9}},
		{"an older deletion", update("99"), deleted("100"), "100", true, nil},
		{"a deletion ahead", update("99"), deleted("101", "99"), "100", false, nil},
		{"a deletion that cannot be", update("99"), deleted(digits13), "100", true, []uint64{20}},
		{"it hides no other", update("99"), deleted("101", digits13), "100", false, []uint64{21}},
		{"nor does an event", update(digits14), deleted("101", digits13, strings.Repeat("9", 30)), "100", false, []uint64{9, 21, 22}},
	} {
		t.Run(test.name, func(t *testing.T) {
			impossible, err := CheckHistory(map[subjects.AppID]*Record{testID: test.record}, test.deleted, test.listed, 5)
			if (err == nil) != test.ok {
				t.Errorf("got %v", err)
			}
			if err != nil && !strings.Contains(err.Error(), "--accept-reset") {
				t.Errorf("%v does not say what to do", err)
			}
			var sequences []uint64
			for _, v := range impossible {
				sequences = append(sequences, v.Sequence)
			}
			if !slices.Equal(sequences, test.impossible) {
				t.Errorf("got %v, want those at %v", impossible, test.impossible)
			}
		})
	}
}
