package appsvc

import "time"

// SetWriteTimeout changes how long a write may take. It is called before Run.
func (s *Service) SetWriteTimeout(limit time.Duration) { s.timeouts.write = limit }

// SetCacheTimeout changes how long a write waits for the cache. It is called before Run.
func (s *Service) SetCacheTimeout(limit time.Duration) { s.timeouts.cache = limit }

// SetReadTimeouts changes how long a request may wait for its turn, and a read may take. It
// is called before Run.
func (s *Service) SetReadTimeouts(queue, read time.Duration) {
	s.timeouts.queue, s.timeouts.read = queue, read
}
