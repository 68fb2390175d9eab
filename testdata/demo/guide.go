package main

import (
	"github.com/appbridge/appbridge/subjects"
)

// guide prints commands that work as they are printed, each with what it shows.
func (s *screen) guide(cli string, bridge *child) {
	nats := cli + " -s " + bridge.natsURL + " "
	key, err := subjects.AppID{Project: "shop", Domain: "production", Name: "storefront"}.Key()
	if err != nil {
		s.note("%v", err)
		return
	}
	for _, command := range []struct{ does, text string }{
		{"the stream and its size", nats + "stream ls"},
		{"its events, oldest first, page by page (on a terminal)", nats + "stream view " + subjects.DefaultStream},
		{"new events, who and what (wait some seconds)", nats + "sub '" + s.events() + "' --headers-only"},
		{"the apps there are", nats + "kv ls " + subjects.DefaultBucket},
		{"one app as it is now", nats + "kv get " + subjects.DefaultBucket + " " + key + " --raw"},
		{"every app now, then every change", nats + "kv watch " + subjects.DefaultBucket},
	} {
		s.line(s.paint(faint, "   # "+command.does))
		s.line("   " + command.text)
	}
	s.line(s.paint(faint, "   # counters, and appbridge's own log"))
	s.line("   curl -s http://" + bridge.http + "/metrics")
	s.line("   tail -f " + bridge.LogPath())
	s.note("kubeconfig: %s", bridge.kubeconfig)
	s.line("")
	s.note("storefront goes on scaling every %s. Ctrl-C stops and removes everything.", scaleInterval)
}

func (s *screen) events() string {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return err.Error()
	}
	return names.Events()
}
