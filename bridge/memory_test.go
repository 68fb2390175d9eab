package bridge

import (
	"testing"

	"github.com/appbridge/appbridge/subjects"
)

// What an append ran into corrects the record that the next session starts from.
func TestCorrect(t *testing.T) {
	s := testEncoder().subjects
	event, err := testEncoder().encode(testID, newUpsert(state{service: testService("u1", "7", "True")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	known := &record{kind: subjects.Created, sequence: 4, uid: "u1", resourceVersion: "5"}
	ours := &storedMessage{subject: event.msg.Subject, sequence: 9, header: event.msg.Header, data: event.msg.Data}
	foreign := &storedMessage{subject: event.msg.Subject, sequence: 9, data: []byte("hello")}
	for _, test := range []struct {
		name    string
		had     *record
		message *storedMessage
		fence   uint64
		version string
		exists  bool
	}{
		{"an event that was not known", nil, ours, 9, "7", true},
		{"a newer event", known, ours, 9, "7", true},
		{"an older one", &record{kind: subjects.Created, sequence: 12, resourceVersion: "8"}, ours, 12, "8", true},
		{"a foreign message", known, foreign, 9, "5", true},
		{"a foreign message before anything", nil, foreign, 9, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			records := map[subjects.AppID]*record{}
			if test.had != nil {
				records[testID] = test.had
			}
			var d doubts
			d.addFound(map[subjects.AppID]*storedMessage{testID: test.message})
			d.correct(records, s)
			got := records[testID]
			if got.fence() != test.fence || got.resourceVersion != test.version || got.exists() != test.exists {
				t.Errorf("got %+v", got)
			}
		})
	}
}
