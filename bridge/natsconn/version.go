package natsconn

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// The oldest NATS server that appbridge works with. An older one accepts these headers
// without an error and ignores them: trace-only messages, the subject of the expected
// sequence, the age of a message.
const (
	minMajor = 2
	minMinor = 11
)

// maxGreeting is more than the INFO of a server takes, with all servers of its cluster.
const maxGreeting = 1 << 20

// versionError reports that a server is too old.
type versionError struct{ address, version string }

func (e *versionError) Error() string {
	return fmt.Sprintf("the NATS server at %s has version %q: want %d.%d.0 or newer", e.address, e.version, minMajor, minMinor)
}

// checkVersion compares the version that a server reports. A pre-release ("2.11.0-RC.1")
// counts as its release: it has what is needed. A version that cannot be read is refused.
func checkVersion(address, version string) error {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	if len(parts) < 2 {
		return &versionError{address, version}
	}
	minor, _, _ := strings.Cut(parts[1], "-")
	major, err := strconv.ParseUint(parts[0], 10, 32)
	n, minorErr := strconv.ParseUint(minor, 10, 32)
	if err != nil || minorErr != nil || major < minMajor || major == minMajor && n < minMinor {
		return &versionError{address, version}
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
	var read []byte
	for buf := make([]byte, 4<<10); !bytes.Contains(read, []byte("\n")) && len(read) < maxGreeting; {
		n, err := conn.Read(buf)
		read = append(read, buf[:n]...)
		if err != nil && n == 0 {
			return nil, fmt.Errorf("read the INFO of the NATS server at %s: %w", address, err)
		}
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	var info struct {
		Version string `json:"version"`
	}
	if line, ok := bytes.CutPrefix(read, []byte("INFO ")); ok && json.NewDecoder(bytes.NewReader(line)).Decode(&info) == nil {
		if err := checkVersion(address, info.Version); err != nil {
			return nil, err
		}
	} // the client reports anything else
	return &greetedConn{Conn: conn, read: read}, nil
}

// greetedConn returns the bytes of the greeting again. It has one reader.
type greetedConn struct {
	net.Conn

	read []byte
}

func (c *greetedConn) Read(p []byte) (int, error) {
	if len(c.read) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.read)
	c.read = c.read[n:]
	return n, nil
}
