package pods

import "fmt"

// search looks for a position in the lines of one response. A line is accepted if the lines up to it
// are those of the position:
//
//   - all lines of the trail, and as many in a row with the last time, whose first is in the response.
//     Content alone is not enough: a dump that is written twice at one time occurs twice.
//   - In the whole file, where a rotation has taken the trail's first lines, those of them that can be
//     there. The number of lines with the last time decides, else the file must have only one such place.
//     Its first line may be the rest of one that the rotation has cut, with another time.
type search struct {
	want position
	view view
	// other: the file is likely another one than that of the trail. Lines of one time at its
	// beginning do not show which one it is.
	other bool
	seen  trail
	found bool
	last  match // how well the last line matches
	// rule is what accepts a line in a whole file that holds no whole trail.
	rule *match
	note string // for the reader when it is found
	// candidates are the places in a whole file, in case that none is accepted.
	candidates candidates
	// end is the hash of a line that was the last one before the request, 0 if there was none. A response
	// without it broke off, or is of another file.
	end      uint64
	complete bool
}

// match is how well a line matches a position.
type match struct {
	lines int  // of the trail that are there
	exact bool // as many lines have the last time
}

// candidates are the places in a whole file that may be the position.
type candidates struct {
	best        match
	exact       int  // places like the best one, if that is exact
	other       int  // places that are not exact
	cut         bool // the best one is exact, but lines of the last time may be missing before it
	first, last int  // of these, as numbers of lines up to there
}

func newSearch(want position, v view) *search {
	s := &search{want: want, view: v, seen: trail{before: 2}}
	if v.whole {
		s.seen = wholeTrail()
	}
	return s
}

// take takes the next line, and reports whether it is the position.
func (s *search) take(m mark) bool {
	s.seen.add(m)
	s.last = match{}
	s.complete = s.complete || m.hash == s.end
	// The first line of a response may be a part of one.
	if m.hash != s.want.sums[0] || s.seen.added == 1 && !s.seen.whole {
		return false
	}
	got, ok := s.match()
	if ok {
		s.last = got
	}
	switch {
	case !ok:
	case s.rule != nil:
		s.found = got == *s.rule
	case got.exact && got.lines == s.want.lines:
		s.found = true
	case s.seen.whole:
		s.candidates.add(got, s.seen.added, s.seen.same == uint64(s.seen.added))
	}
	return s.found
}

// match reports whether the line that was taken last can be the position.
func (s *search) match() (match, bool) {
	first := s.seen.whole && s.seen.same == uint64(s.seen.added)
	got := match{exact: s.want.begun && s.seen.begun && s.seen.same == s.want.same && (!first || !s.other)}
	switch {
	case got.exact:
	case !s.seen.whole:
		return match{}, false
	case s.want.begun:
		// A rotation may have taken the first of the lines with the last time, or cut the line before them.
		if !first || s.seen.same > s.want.same+1 {
			return match{}, false
		}
	case s.seen.same < s.want.same:
		return match{}, false
	}
	for i, n := range windows {
		n = min(n, s.want.lines)
		if n > s.seen.added {
			break
		}
		if s.seen.sum(n) != s.want.sums[i] {
			if i == 0 || n < s.seen.added || !s.seen.whole {
				return match{}, false
			}
			got.exact = false
			break
		}
		got.lines = n
	}
	return got, true
}

// add adds a place after so many lines. first: all of them have the last time.
func (c *candidates) add(m match, lines int, first bool) {
	switch {
	case !m.exact:
		if c.other++; c.other == 1 {
			c.first = lines
			if c.exact == 0 {
				c.best = m
			}
		}
		c.last = lines
	case c.exact == 0 || m.lines > c.best.lines:
		c.best, c.exact, c.cut = m, 1, first
	case m == c.best:
		c.exact++
	}
}

// decide returns what accepts a line in a whole file that holds no whole trail, and a note. It returns
// nil if all lines are new.
func (s *search) decide() (rule *match, note string) {
	c, want := &s.candidates, s.want
	const repeated = "the log was rotated between lines of one time; up to %d of them may be repeated here"
	switch {
	case c.exact > 0 && (!c.cut || c.other == 0), c.exact == 0 && c.other == 1 && !s.other:
		return &c.best, ""
	case c.other == 0:
		return nil, "the log does not hold its last line before an interruption any more; lines may be missing here"
	case want.begun:
		return nil, fmt.Sprintf(repeated, max(c.last, int(want.same)*min(c.exact, 1)))
	default:
		return &c.best, fmt.Sprintf(repeated, c.last-c.first)
	}
}
