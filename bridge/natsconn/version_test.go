package natsconn

import (
	"net"
	"testing"
	"time"
)

func TestCheckVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"2.11.0": true, "2.11.0-RC.1": true, "2.11.0-dev": true, "2.11.0-preview.2": true, "2.11.12": true, "2.12.1-beta": true, "2.12": true, "2.12-beta": true,
		"2.15.2": true, "v2.11.3": true, "2.100.0": true, "3.0.0": true, "10.1.0": true, "2.11.0+build.7": true,
		"2.10.29": false, "2.10.29-RC.5": false, "2.9.25": false, "2.2.0": false, "1.4.1": false, "0.9.6": false,
		"": false, "2": false, "dev": false, "dev.11": false, "2.x.0": false, "-2.11.0": false, "2.-11.0": false, "2.99999999999999999999": false,
	} {
		err := checkVersion("host:4222", version)
		if (err == nil) != ok {
			t.Errorf("%q: got %v", version, err)
		}
		if want := `the NATS server at host:4222 has version "` + version + `": want 2.11.0 or newer`; err != nil && err.Error() != want {
			t.Errorf("got %q, want %q", err, want)
		}
	}
}

// TestGreetingOfAHungServer: a server that accepts and sends nothing fails a try within seconds, and a stop at once.
func TestGreetingOfAHungServer(t *testing.T) {
	var d dialer
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		_, err := d.Dial("tcp", listener.Addr().String())
		done <- err
	}()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	d.stop()
	select {
	case err := <-done:
		if err == nil || d.refusal() != nil {
			t.Errorf("got %v, refusal %v", err, d.refusal())
		}
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}
