package logsvc

import "time"

// BePatient has requests be answered in time on a busy machine, too.
func (s *Service) BePatient(limit time.Duration) { s.times = times{answer: limit, read: limit} }
