package natsconn

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// oldest is the oldest NATS server that appbridge works with. An older one accepts these headers
// without an error and ignores them: trace-only messages, the subject of the expected
// sequence, the age of a message.
const oldest = "2.11.0"

// maxGreeting is more than the INFO of a server takes, with all servers of its cluster.
const maxGreeting = 1 << 20

type versionError struct{ address, version string }

func (e *versionError) Error() string {
	return fmt.Sprintf("the NATS server at %s has version %q: want %s or newer", e.address, e.version, oldest)
}

// checkVersion compares the version that a server reports. A pre-release ("2.11.0-RC.1")
// counts as its release: it has what is needed. A version that cannot be read is refused.
func checkVersion(address, reported string) error {
	v, err := version.ParseGeneric(reported)
	if err != nil || v.LessThan(version.MustParseGeneric(oldest)) {
		return &versionError{address, reported}
	}
	return nil
}

// greeting reads the first line of a server, which names its version, and returns the
// connection as if it had not been read. So an old server is refused before anything is
// sent to it, at the start and at every reconnect, and the client tries the next one.
func greeting(conn net.Conn, address string) (net.Conn, error) {
	if err := conn.SetReadDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	var read bytes.Buffer
	line, err := bufio.NewReader(io.TeeReader(io.LimitReader(conn, maxGreeting), &read)).ReadBytes('\n')
	if err != nil && len(line) < maxGreeting {
		return nil, fmt.Errorf("read the INFO of the NATS server at %s: %w", address, err)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	var info struct {
		Version string `json:"version"`
	}
	if text, ok := bytes.CutPrefix(line, []byte("INFO ")); ok && json.NewDecoder(bytes.NewReader(text)).Decode(&info) == nil {
		if err := checkVersion(address, info.Version); err != nil {
			return nil, err
		}
	} // the client reports anything else
	return &greetedConn{conn, io.MultiReader(&read, conn)}, nil
}

// greetedConn returns the bytes of the greeting again. It has one reader.
type greetedConn struct {
	net.Conn

	whole io.Reader
}

func (c *greetedConn) Read(p []byte) (int, error) { return c.whole.Read(p) }
