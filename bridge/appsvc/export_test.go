package appsvc

import "time"

// SetWriteTimeout changes how long a write may take. It is called before Run.
func (s *Service) SetWriteTimeout(limit time.Duration) { s.writeTimeout = limit }
