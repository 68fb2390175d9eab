package bridge

import (
	"testing"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/bridge/store"
	"github.com/appbridge/appbridge/subjects"
)

// What an append ran into corrects the record that the next session starts from.
func TestCorrect(t *testing.T) {
	s := testEncoder().Subjects
	event, err := testEncoder().Encode(testID, app.NewUpsert(app.State{Service: testService("u1", "7", "True")}, true), nil)
	if err != nil {
		t.Fatal(err)
	}
	known := &app.Record{Kind: subjects.Created, Sequence: 4, UID: "u1", ResourceVersion: "5"}
	ours := &store.Message{Subject: event.Msg.Subject, Sequence: 9, Header: event.Msg.Header, Data: event.Msg.Data}
	foreign := &store.Message{Subject: event.Msg.Subject, Sequence: 9, Data: []byte("hello")}
	for _, test := range []struct {
		name    string
		had     *app.Record
		message *store.Message
		fence   uint64
		version string
		exists  bool
	}{
		{"an event that was not known", nil, ours, 9, "7", true},
		{"a newer event", known, ours, 9, "7", true},
		{"an older one", &app.Record{Kind: subjects.Created, Sequence: 12, ResourceVersion: "8"}, ours, 12, "8", true},
		{"a foreign message", known, foreign, 9, "5", true},
		{"a foreign message before anything", nil, foreign, 9, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			records := map[subjects.AppID]*app.Record{}
			if test.had != nil {
				records[testID] = test.had
			}
			var d doubts
			d.addFound(map[subjects.AppID]*store.Message{testID: test.message})
			d.correct(records, s)
			got := records[testID]
			if got.Fence() != test.fence || got.ResourceVersion != test.version || got.Exists() != test.exists {
				t.Errorf("got %+v", got)
			}
		})
	}
}
