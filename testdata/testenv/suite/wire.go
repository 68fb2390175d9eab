package suite

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// wire stands between NATS clients and their server.
type wire struct {
	pumps  sync.WaitGroup
	mu     sync.Mutex
	conns  []net.Conn
	closed chan struct{}
	delay  time.Duration
	lose   func(payload []byte) bool
}

// Wire accepts NATS clients for the server at target, until the end of the test, and returns their URL.
// What passes is delayed in each direction. lose, if it is not nil, is called with the payload of each
// message for a client, headers included; the message is lost if it returns true.
func Wire(tb testing.TB, target string, delay time.Duration, lose func(payload []byte) bool) (url string) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	w := &wire{delay: delay, lose: lose, closed: make(chan struct{})}
	w.pumps.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			w.mu.Lock()
			w.conns = append(w.conns, client, server)
			w.mu.Unlock()
			w.pumps.Go(func() { w.pump(client, server, w.chunk) })
			w.pumps.Go(func() { w.pump(server, client, w.frame) })
		}
	})
	tb.Cleanup(func() {
		close(w.closed)
		_ = listener.Close()
		w.mu.Lock()
		for _, c := range w.conns {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.pumps.Wait()
	})
	return "nats://" + listener.Addr().String()
}

func (w *wire) chunk(r *bufio.Reader) ([]byte, error) {
	b := make([]byte, 32<<10)
	n, err := r.Read(b)
	return b[:n], err
}

// frame reads one operation of the protocol to the client.
func (w *wire) frame(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return line, err
	}
	if !bytes.HasPrefix(line, []byte("MSG ")) && !bytes.HasPrefix(line, []byte("HMSG ")) {
		return line, nil
	}
	fields := strings.Fields(string(line))
	n, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil {
		return nil, err
	}
	payload := make([]byte, n+2)
	if _, err := io.ReadFull(r, payload); err != nil {
		return nil, err
	}
	if w.lose != nil && w.lose(payload) {
		return nil, nil
	}
	return append(line, payload...), nil
}

func (w *wire) pump(from, to net.Conn, read func(*bufio.Reader) ([]byte, error)) {
	type late struct {
		data []byte
		at   time.Time
	}
	queue := make(chan late, 100_000)
	w.pumps.Go(func() {
		for l := range queue {
			select {
			case <-time.After(time.Until(l.at)):
			case <-w.closed:
			}
			if _, err := to.Write(l.data); err != nil {
				_ = from.Close()
			}
		}
		_ = to.Close()
	})
	defer close(queue)
	r := bufio.NewReaderSize(from, 64<<10)
	for {
		data, err := read(r)
		if len(data) > 0 {
			queue <- late{data, time.Now().Add(w.delay)}
		}
		if err != nil {
			return
		}
	}
}
