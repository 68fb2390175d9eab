package main

import (
	"errors"

	"github.com/appbridge/appbridge/subjects"
)

// guide prints commands that work as they are printed, each with what it shows.
func (s *screen) guide(cli string, bridge *child, shop *shopLog) {
	nats := cli + " -s " + bridge.natsURL + " "
	key, err := shop.id.Key()
	get, getErr := shop.subject(subjects.LogGet)
	tail, tailErr := shop.subject(subjects.LogTail)
	names, namesErr := subjects.New(subjects.DefaultPrefix)
	one, oneErr := names.API(subjects.APIGet, shop.id)
	list, listErr := names.APIList(shop.id.Project, "")
	hello := subjects.AppID{Project: shop.id.Project, Domain: shop.id.Domain, Name: "hello"}
	deploy, deployErr := names.API(subjects.APIDeploy, hello)
	if err := errors.Join(err, getErr, tailErr, namesErr, oneErr, listErr, deployErr); err != nil {
		s.note("%v", err)
		return
	}
	app := shop.id.Project + "/" + shop.id.Domain + "/" + shop.id.Name
	for _, command := range []struct{ does, text string }{
		{"the stream and its size", nats + "stream ls"},
		{"its events, oldest first, page by page (on a terminal)", nats + "stream view " + subjects.DefaultStream},
		{"new events, who and what (wait some seconds)", nats + "sub '" + s.events() + "' --headers-only"},
		{"the apps there are", nats + "kv ls " + subjects.DefaultBucket},
		{"one app as it is now", nats + "kv get " + subjects.DefaultBucket + " " + key + " --raw"},
		{"every app now, then every change", nats + "kv watch " + subjects.DefaultBucket},
		{"the last lines of each replica of an app", nats + "req --raw " + get + ` '{"tail": 5}'`},
		{"its log, and what is written, until Ctrl-C", nats + "req --raw --replies=0 --timeout=24h " + tail + ` '{"follow": true}'`},
		{"the same with appbridge itself", bridge.bin + " logs --nats-url " + bridge.natsURL + " " + app + " -f"},
		{"one app, and all of a project", nats + "req --raw " + one + " ''"},
		{"", nats + "req --raw " + list + ` '{"request": {"limit": 2}}'`},
		{"deploy an app of your own: watch its event come", nats + "req " + deploy + ` '{"app": {"spec": {"container": {"image": "registry.example.com/hello:1"}}}}'`},
	} {
		if command.does != "" {
			s.line(s.paint(faint, "   # "+command.does))
		}
		s.line("   " + command.text)
	}
	s.line(s.paint(faint, "   # counters, and appbridge's own log"))
	s.line("   curl -s http://" + bridge.http + "/metrics")
	s.line("   tail -f " + bridge.LogPath())
	s.note("kubeconfig: %s", bridge.kubeconfig)
	s.line("")
	s.note("%s goes on: a line of log every %s, scaled every %s. Ctrl-C stops and removes everything.", shopApp, requestInterval, scaleInterval)
}

func (s *screen) events() string {
	names, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		return err.Error()
	}
	return names.Events()
}
