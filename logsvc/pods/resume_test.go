package pods_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/appbridge/appbridge/logsvc"
	"github.com/appbridge/appbridge/testdata/testenv"
)

// Parts of the notes about what a search cannot decide.
const (
	rotatedAway = "the log does not hold its last line before an interruption any more; lines may be missing here"
	ambiguous   = "the log was rotated between lines of one time; up to "
)

var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

// resuming is a follow of one pod.
type resuming struct {
	*tailing
	pod *testenv.Pod
}

// interrupt has what happens between two requests for the log happen.
func (r *resuming) interrupt(meanwhile func()) {
	r.t.Helper()
	r.pod.Hang(true)
	r.pod.EOF()
	soon(r.t, "the next request waits", func() error {
		if requests := r.pod.Followers(); requests == 0 {
			return fmt.Errorf("%d", requests)
		}
		return nil
	})
	meanwhile()
	r.pod.Hang(false)
}

// stop ends the follow.
func (r *resuming) stop() {
	r.t.Helper()
	r.cancel()
	soon(r.t, "the kubelet notices the end", func() error {
		if n := r.pod.Followers(); n > 0 {
			return fmt.Errorf("%d follows", n)
		}
		return nil
	})
}

// rotate rotates the log when the follow notices it.
func (r *resuming) rotate() {
	r.t.Helper()
	soon(r.t, "the follow is at the end", func() error {
		if r.pod.AtEnd() == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	r.pod.Rotate()
}

// notesOfSearch returns the notes, other than that the log could not be read for a while.
func (r *resuming) notesOfSearch() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.notes), func(note string) bool { return strings.Contains(note, "; trying again") })
}

// want waits for the lines, then for one more that is written, and compares the notes.
func (r *resuming) want(lines []string, notes ...string) {
	r.t.Helper()
	const last = "the last line"
	r.wait(r.pod, lines...)
	r.pod.Write(last)
	r.wait(r.pod, append(slices.Clip(lines), last)...)
	got := r.notesOfSearch()
	if len(got) != len(notes) {
		r.t.Fatalf("got notes %q, want %q", got, notes)
	}
	for i, note := range notes {
		if !strings.Contains(got[i], note) {
			r.t.Errorf("got the note %q, want %q", got[i], note)
		}
	}
}

// eachForm runs a test with the logs of both runtimes.
func eachForm(t *testing.T, test func(t *testing.T, start func(tail int64, write func(pod *testenv.Pod)) *resuming)) {
	t.Helper()
	p := newPlace(t)
	for name, form := range map[string]testenv.LogForm{"containerd": testenv.Containerd, "CRI-O": testenv.CRIO} {
		t.Run(name, func(t *testing.T) {
			a := p.newApp("a" + strings.ToLower(strings.ReplaceAll(name, "-", "")))
			test(t, func(tail int64, write func(pod *testenv.Pod)) *resuming {
				pod := a.run("00001", func(o *testenv.PodOptions) { o.Log = form })
				write(pod)
				return &resuming{read(t, p.kubernetes(), logsvc.Query{App: a.id, Tail: tail, Replica: pod.Name()}), pod}
			})
		})
	}
}

// seconds are lines of one text at the seconds from..to-1 after noon.
func seconds(pod *testenv.Pod, from, to int) (lines []string) {
	for i := from; i < to; i++ {
		pod.WriteAt(noon.Add(time.Duration(i)*time.Second), "tick")
		lines = append(lines, "tick")
	}
	return lines
}

func TestResumeClockStep(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		var lines []string
		r := start(-1, func(pod *testenv.Pod) { lines = seconds(pod, 0, 30) })
		r.wait(r.pod, lines...)
		r.interrupt(func() { lines = append(lines, seconds(r.pod, 10, 40)...) })
		r.want(lines)
	})
}

// A tail of lines that have one time does not show how many of them there are.
func TestTailOfSameLines(t *testing.T) {
	t.Parallel()
	for _, tail := range []int64{0, 3, 400} {
		for _, text := range []string{"x", strings.Repeat(".", 200), ""} {
			t.Run(fmt.Sprintf("%d of %d characters", tail, len(text)), func(t *testing.T) {
				t.Parallel()
				eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
					same := slices.Repeat([]string{text}, 1200)
					r := start(tail, func(pod *testenv.Pod) { pod.WriteAt(noon, same[:900]...) })
					soon(t, "it follows", following(r.pod))
					r.pod.WriteAt(noon, same[900:]...)
					r.want(same[:tail+300])
				})
			})
		}
	}
}

// A tail has as many lines as it asks for, however many bytes and records they take.
func TestTailOfLongLines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		size, lines int
		tails       []int64
	}{{200, 2000, []int64{1000}}, {30_000, 40, []int64{1, 5, 12, 40}}, {100_000, 20, []int64{5, 19, 1000}}} {
		t.Run(fmt.Sprintf("%d bytes", tt.size), func(t *testing.T) {
			t.Parallel()
			eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
				lines := numbers(0, tt.lines)
				for i := range lines {
					lines[i] = strings.Repeat("x", tt.size) + lines[i]
				}
				for _, tail := range tt.tails {
					r := start(tail, func(pod *testenv.Pod) { pod.Write(lines...) })
					r.want(lines[max(0, len(lines)-int(tail)):])
				}
			})
		})
	}
}

// A follow begins with the last lines at the request, however many are written until its node answers.
func TestTailOfBusyLog(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		for _, tail := range []int64{0, 5, 300} {
			r := start(tail, func(pod *testenv.Pod) {
				pod.Write(numbers(0, 400)...)
				pod.Hang(true)
			})
			soon(t, "the request waits", func() error {
				if r.pod.Followers() == 0 {
					return errors.New("there is none")
				}
				return nil
			})
			r.pod.Write(numbers(400, 4000)...)
			r.pod.Hang(false)
			r.want(numbers(400-int(tail), 4000))
		}
	})
}

// The last line of a container that has ended without a line end is one of the last lines.
func TestTailOfUnfinishedLine(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		lines := append(numbers(0, 5), "panic: out of")
		for _, tail := range []int64{0, 1, 3, 6, 10} {
			r := start(tail, func(pod *testenv.Pod) {
				pod.Write(lines[:5]...)
				pod.WriteRaw([]byte(lines[5]))
				check(t, pod.Crash(t.Context()))
			})
			soon(t, "it waits", func() error { return r.noted("waiting for it to start again") })
			check(t, r.pod.Recover(t.Context()))
			r.pod.Write("again")
			r.wait(r.pod, append(slices.Clone(lines[max(0, len(lines)-int(tail)):]), "again")...)
		}
	})
}

func TestResumeSameLines(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		const n = 50_000
		same := slices.Repeat([]string{"x"}, n)
		r := start(-1, func(pod *testenv.Pod) {
			pod.WriteAt(noon.Add(-time.Second), "before")
			pod.WriteAt(noon, same...)
		})
		lines := append([]string{"before"}, same...)
		r.wait(r.pod, lines...)
		r.interrupt(func() { r.pod.WriteAt(noon, same...) })
		r.want(append(lines, same...))
	})
}

func TestResumeDump(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		dump := numbers(0, 300)
		lines := slices.Repeat(dump, 5)
		r := start(-1, func(pod *testenv.Pod) { pod.WriteAt(noon, lines...) })
		r.wait(r.pod, lines...)
		more := append(slices.Clone(dump), dump[:150]...)
		r.interrupt(func() { r.pod.WriteAt(noon, more...) })
		r.want(append(lines, more...))
	})
}

func TestResumeSameLinesRotated(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		same := slices.Repeat([]string{"x"}, 5000)
		r := start(-1, func(pod *testenv.Pod) { pod.WriteAt(noon, same[:4000]...) })
		r.wait(r.pod, same[:4000]...)
		r.rotate()
		r.pod.WriteAt(noon, same[4000:]...)
		soon(t, "all lines come", func() error {
			if got := len(r.of(r.pod)); got < 5000 {
				return fmt.Errorf("%d", got)
			}
			return nil
		})
		r.interrupt(func() { r.pod.WriteAt(noon, same[:500]...) })
		r.pod.Write("end")
		soon(t, "the end comes", func() error {
			lines := r.of(r.pod)
			if lines[len(lines)-1] != "end" {
				return fmt.Errorf("%d lines", len(lines))
			}
			return nil
		})
		got, notes := len(r.of(r.pod))-1, r.notesOfSearch()
		// A follow that is silent after the rotation cannot be distinguished from one in the old file: then
		// the new one comes twice.
		if got < 5500 || got > 5500+1000*len(notes) || len(notes) == 0 || !strings.Contains(notes[len(notes)-1], ambiguous) {
			t.Errorf("got %d lines, want 5500 and up to 1000 more for each note; notes %q", got, notes)
		}
	})
}

func TestResumeRotated(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		r := start(-1, func(pod *testenv.Pod) { pod.Write(numbers(0, 970)...) })
		r.wait(r.pod, numbers(0, 970)...)
		r.rotate()
		r.pod.Write(numbers(970, 1000)...)
		r.wait(r.pod, numbers(0, 1000)...)
		r.interrupt(func() { r.pod.Write(numbers(1000, 1050)...) })
		r.want(numbers(0, 1050))
	})
}

func TestResumeRotatedTwice(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		r := start(-1, func(pod *testenv.Pod) { pod.Write(numbers(0, 10)...) })
		r.wait(r.pod, numbers(0, 10)...)
		r.interrupt(func() {
			r.pod.Rotate()
			r.pod.Write(numbers(10, 110)...)
			r.pod.Rotate()
			r.pod.Write(numbers(110, 160)...)
		})
		r.want(append(numbers(0, 10), numbers(110, 160)...), rotatedAway)
	})
}

// The first line of a log is the rest of one that was delivered: a rotation has cut it. CRI-O may give it the
// time of the lines behind it.
func TestResumeRotatedInLine(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		for _, n := range []int{1, 2, 3, 15, 63} {
			lines := numbers(0, 100)
			r := start(-1, func(pod *testenv.Pod) { pod.Write(lines...) })
			r.wait(r.pod, lines...)
			long := strings.Repeat("x", 20_000)
			r.pod.WriteRaw([]byte(long))
			r.rotate()
			lines = append(append(lines, long+"rest"), numbers(100, 100+n)...)
			r.pod.WriteRaw([]byte(strings.Join(lines[100:], "\n")[len(long):] + "\n"))
			r.wait(r.pod, lines...)
			r.interrupt(func() { r.pod.Write("meanwhile") })
			r.want(append(lines, "meanwhile"))
		}
	})
}

// The last line of a log lies in several records, of which a request for one has a part of the line.
func TestResumeRotatedLongLastLine(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		for _, records := range []int{2, 3, 8} {
			r := start(-1, func(pod *testenv.Pod) { pod.Write(numbers(0, 10)...) })
			r.wait(r.pod, numbers(0, 10)...)
			after := []string{"after", strings.Repeat("x", (records-1)*(16<<10)+1)}
			r.interrupt(func() {
				r.pod.Rotate()
				r.pod.Write(after...)
			})
			r.want(append(numbers(0, 10), after...), rotatedAway)
			alone := start(-1, func(pod *testenv.Pod) { pod.Write("gone") })
			alone.wait(alone.pod, "gone")
			alone.interrupt(func() {
				alone.pod.Rotate()
				alone.pod.Write(after[1])
			})
			alone.want([]string{"gone", after[1]}, rotatedAway)
		}
	})
}

// A follow that cannot find its place gives up also while lines come, and long before there are as many as
// it would look at.
func TestResumeSteadyWriter(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		const first, most = 600, 1000
		r := start(-1, func(pod *testenv.Pod) { pod.Write(numbers(0, first)...) })
		r.wait(r.pod, numbers(0, first)...)
		r.interrupt(r.pod.Rotate)
		n := first
		for ; len(r.of(r.pod)) == first; n++ {
			if n == most {
				t.Fatalf("none of %d lines came", n-first)
			}
			r.pod.Write(numbers(n, n+1)...)
			check(t, testenv.Pause(t.Context(), 50*time.Millisecond))
		}
		r.want(numbers(0, n), rotatedAway)
	})
}

func TestResumeLongLine(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		long := strings.Repeat("x", 1<<20)
		cut := fmt.Sprintf("%d bytes and %d cut", 128<<10, 1<<20-128<<10)
		r := start(-1, func(pod *testenv.Pod) {
			pod.Write("before")
			pod.EndAfter(20)
			pod.Write(long, "after")
		})
		r.wait(r.pod, "before")
		r.pod.EndAfter(0)
		r.want([]string{"before", cut, "after"})

		// One line is one line, of however many records.
		for _, follow := range []bool{false, true} {
			last := start(1, func(pod *testenv.Pod) { pod.Write("before", long) })
			if follow {
				last.want([]string{cut})
			} else {
				last.wait(last.pod, cut)
			}
		}
	})
}

func TestResumeTornRecord(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		torn := func(pod *testenv.Pod) {
			pod.Write("gone")
			pod.Rotate()
			pod.WriteFile([]byte("rest of a record\n"))
			pod.Write(numbers(0, 600)...)
		}
		r := start(-1, torn)
		r.wait(r.pod, numbers(0, 600)...)
		r.interrupt(func() { r.pod.Write(numbers(600, 650)...) })
		r.wait(r.pod, numbers(0, 650)...)
		r.interrupt(func() { r.pod.Write(numbers(650, 1650)...) })
		r.want(numbers(0, 1650))
		last := start(1000, torn)
		last.want(numbers(0, 600))
	})
}

// A kubelet whose reader has not come to the end of the file when that is rotated stays in the old file
// for ever.
func TestResumeRotatedBeforeEnd(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]func(pod *testenv.Pod, from, to int) []string{
		"numbers": func(pod *testenv.Pod, from, to int) []string {
			pod.Write(numbers(from, to)...)
			return numbers(from, to)
		},
		"identical": func(pod *testenv.Pod, from, to int) []string {
			lines := slices.Repeat([]string{"x"}, to-from)
			pod.WriteAt(noon, lines...)
			return lines
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
				const each = 200 * time.Millisecond
				var lines []string
				r := start(-1, func(pod *testenv.Pod) {
					// If all lines of both files were the same, nothing would show that there are two.
					pod.WriteAt(noon.Add(-time.Second), "before")
					lines = append([]string{"before"}, text(pod, 0, 5)...)
					pod.Slow(0, each)
				})
				soon(t, "it follows", following(r.pod))
				early := r.pod.AtEnd() == 0
				r.pod.Rotate()
				lines = append(lines, text(r.pod, 5, 105)...)
				r.pod.Slow(0, 0)
				r.wait(r.pod, lines...)
				if notes := r.notesOfSearch(); early && len(notes) != 1 {
					t.Errorf("got notes %q, want one", notes)
				}
			})
		})
	}
}

// Lines of one time are not repeated, however few of them were read.
func TestResumeTail(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		log := []string{"first", "", "  at x", "", "  at y", ""}
		for tail := range len(log) + 2 {
			r := start(int64(tail), func(pod *testenv.Pod) { pod.WriteAt(noon, log...) })
			want := log[max(0, len(log)-tail):]
			soon(t, "it follows", following(r.pod))
			r.wait(r.pod, want...)
			r.interrupt(func() {})
			r.want(want)
		}
	})
}

// A kubelet that does not answer, or answers with a header alone, is reported while the stream goes on.
func TestResumeHungKubelet(t *testing.T) {
	t.Parallel()
	for name, hinder := range map[string]func(*testenv.Pod, bool){
		"hang":    func(pod *testenv.Pod, on bool) { pod.Hang(on) },
		"silence": func(pod *testenv.Pod, on bool) { pod.Silence(on) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
				r := start(-1, func(pod *testenv.Pod) { pod.Write("one") })
				r.wait(r.pod, "one")
				soon(t, "it follows", following(r.pod))
				hinder(r.pod, true)
				r.pod.EOF()
				soon(t, "it is reported", func() error {
					return r.noted("cannot be read: its node did not answer in time; trying again")
				})
				r.pod.Write("two")
				hinder(r.pod, false)
				r.want([]string{"one", "two"})
			})
		})
	}
}

// The last minutes are those of the node's clock.
func TestSinceByNodeClock(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"behind": -time.Hour, "ahead": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.SetClock(func() time.Time { return time.Now().UTC().Add(wrong) })
			a := p.newApp("clock")
			pod := a.run("00001")
			pod.WriteAt(time.Now().UTC().Add(wrong-20*time.Minute), "old")
			pod.WriteAt(time.Now().UTC().Add(wrong-time.Minute), "new", "newer")
			for _, tt := range []struct {
				tail int64
				want []string
			}{{-1, []string{"new", "newer"}}, {1, []string{"newer"}}, {5, []string{"new", "newer"}}} {
				q := logsvc.Query{App: a.id, Tail: tt.tail, Age: 10 * time.Minute, Follow: logsvc.FollowNever}
				r := read(t, p.kubernetes(), q)
				r.end()
				r.wait(pod, tt.want...)
				q.Follow = logsvc.FollowRunning
				f := &resuming{read(t, p.kubernetes(), q), pod}
				f.wait(pod, tt.want...)
				soon(t, "it follows", following(pod))
				f.stop()
			}
			// The age of a line is that at the request, however long the answer takes.
			for _, tail := range []int64{-1, 5} {
				pod.Hang(true)
				before := len(pod.Requests())
				f := &resuming{read(t, p.kubernetes(), logsvc.Query{App: a.id, Tail: tail, Age: 2 * time.Second}), pod}
				soon(t, "a request waits", func() error {
					if len(pod.Requests()) == before {
						return fmt.Errorf("none")
					}
					return nil
				})
				pod.Write("meanwhile")
				check(t, testenv.Pause(t.Context(), 4*time.Second))
				pod.Hang(false)
				f.wait(pod, "meanwhile")
				soon(t, "it follows", following(pod))
				f.want([]string{"meanwhile"})
				f.stop()
				check(t, testenv.Pause(t.Context(), 4*time.Second)) // none of these is among the last seconds of the next
			}
		})
	}
}

// Two instances begin with the same lines at the same time: they start within one second of a clock that has
// whole seconds.
func TestRestartSameLines(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.SetClock(func() time.Time { return noon })
	a := p.newApp("same")
	pod := a.run("00001")
	pod.Write("starts", "fails")
	r := read(t, p.kubernetes(), all(a))
	lines := []string{"starts", "fails"}
	r.wait(pod, lines...)
	for _, last := range []string{"fails", "runs"} {
		soon(t, "it follows", following(pod))
		check(t, pod.Restart(t.Context()))
		pod.Write("starts", last)
		lines = append(lines, "starts", last)
		r.wait(pod, lines...)
	}
	r.onlyNotes(t, "container app started again")
}

// What a container wrote last is one of the last lines also without a line end.
func TestTailOfTornLine(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for name, form := range map[string]testenv.LogForm{"containerd": testenv.Containerd, "crio": testenv.CRIO} {
		t.Run(name, func(t *testing.T) {
			a := p.newApp(name)
			pod := a.run("00001", func(o *testenv.PodOptions) { o.Log = form })
			pod.Write("one", "two")
			pod.WriteRaw([]byte("torn"))
			check(t, pod.Finish(t.Context(), "Failed"))
			lines := []string{"one", "two", "torn"}
			for tail := range len(lines) + 2 {
				for _, follow := range []logsvc.Follow{logsvc.FollowNever, logsvc.FollowRunning} {
					r := read(t, p.kubernetes(), logsvc.Query{App: a.id, Tail: int64(tail), Follow: follow})
					r.end()
					if got, want := r.of(pod), lines[max(0, len(lines)-tail):]; !slices.Equal(got, want) {
						t.Errorf("tail %d, follow %d: got %q, want %q", tail, follow, got, want)
					}
				}
			}
		})
	}
}

// The clock of a node has whole seconds and steps back: what since leaves of a log is followed from its end, not
// from an earlier line that is like the last one.
func TestSinceClockStep(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, tail := range []int64{-1, 300} {
		a := p.newApp(fmt.Sprintf("step%d", tail+1))
		pod := a.run("00001")
		lines := append(seconds(pod, 0, 30), seconds(pod, 10, 30)...)[5:]
		r := &resuming{read(t, p.kubernetes(), logsvc.Query{App: a.id, Tail: tail, Since: noon.Add(5 * time.Second)}), pod}
		r.wait(pod, lines...)
		soon(t, "it follows", following(pod))
		lines = append(lines, seconds(pod, 20, 40)...)
		r.wait(pod, lines...)
		r.interrupt(func() { lines = append(lines, seconds(pod, 30, 50)...) })
		r.want(lines)
		r.stop()
	}
}

// The clock of a node has whole seconds and steps back at a rotation: lines that are written again look like
// those that came before.
func TestResumeRotatedClockStep(t *testing.T) {
	t.Parallel()
	eachForm(t, func(t *testing.T, start func(int64, func(*testenv.Pod)) *resuming) {
		var lines []string
		r := start(-1, func(pod *testenv.Pod) { lines = seconds(pod, 0, 50) })
		r.wait(r.pod, lines...)
		r.interrupt(func() {
			r.pod.Rotate()
			lines = append(lines, seconds(r.pod, 47, 57)[3:]...)
		})
		r.want(lines, "the log was rotated, and its times are whole seconds; lines may be missing here")
	})
}
