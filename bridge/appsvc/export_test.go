package appsvc

import "time"

// SetWriteTimeout changes how long a write may take. It is called before Run.
func (s *Service) SetWriteTimeout(limit time.Duration) { s.timeouts.write = limit }

// SetReadTimeouts changes how long a request may wait for its turn, and a read may take. It
// is called before Run.
func (s *Service) SetReadTimeouts(queue, read time.Duration) {
	s.timeouts.queue, s.timeouts.read = queue, read
}
