package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/appbridge/appbridge/subjects"
)

// VerifyOptions say how Verify goes about it.
type VerifyOptions struct {
	// Settle is how long a difference must persist unchanged before it counts:
	// what a running bridge has under way is none. Zero: one look decides.
	Settle time.Duration
	// Timeout bounds each wait for NATS or Kubernetes to answer, and that for
	// the publishing part of a repair to be done.
	Timeout time.Duration
	// Repair mends what differs.
	Repair bool
	// Repaired, when set, is told of each repair as it is done.
	Repaired func(Repair)
}

// settleRounds bounds, in settle times, how long apps that change all the time
// are looked at.
const settleRounds = 10

// Verify compares the cluster, the stream and the bucket as a Bridge with cfg
// should have left them, also while one runs. Without opts.Repair it changes
// nothing. The connection must have been made with ConnectOptions.
//
// An error means that something could not be looked at or repaired; what was
// found before is in the report even then, which is never nil.
func Verify(ctx context.Context, cfg Config, kube *rest.Config, nc *nats.Conn, log *zap.Logger, opts VerifyOptions) (*Report, error) {
	report := &Report{Differences: []Difference{}, Notes: []Note{}, Repairs: []Repair{}}
	var lease types.NamespacedName
	if cfg.LeaderElect {
		lease = types.NamespacedName{Namespace: cfg.LeaseNamespace, Name: cfg.LeaseName}
	}
	cfg.LeaderElect, cfg.AcceptReset = false, false
	b, err := New(cfg, kube, nc, log, prometheus.NewRegistry())
	if err != nil {
		return report, err
	}
	k, err := newKube(kube, cfg.Namespaces, b.source, b.conn, log)
	if err != nil {
		return report, err
	}
	v := &verifier{looker: looker{b, watching(k.namespaces)}, kube: k, lease: lease, opts: opts, report: report}
	if err := v.until(ctx, "Kubernetes", func(ctx context.Context) error {
		uid, err := k.uid(ctx)
		b.clusterUID = string(uid)
		if err != nil {
			return err
		}
		return v.checkNamespaces(ctx)
	}); err != nil {
		return report, err
	}
	if err := v.verify(ctx); err != nil || !opts.Repair || len(report.Differences) == 0 {
		return report, err
	}
	repairErr := v.repair(ctx)
	if ctx.Err() != nil {
		return report, repairErr
	}
	return report, errors.Join(repairErr, v.verify(ctx))
}

// verifier is one run of Verify. Its Bridge is never run.
type verifier struct {
	looker
	kube   *kube
	lease  types.NamespacedName // of the bridges; without a name: none
	opts   VerifyOptions
	report *Report

	unchecked map[string]bool // the namespaces that may not exist
}

func (v *looker) reader() reader { return reader{v.nc, v.cfg.Stream, v.subjects} }

// verify fills the report with the differences that persist.
func (v *verifier) verify(ctx context.Context) error {
	started := time.Now()
	s, err := v.look(ctx, nil)
	if err != nil {
		return err
	}
	differences, notes := v.judge(s)
	v.report.Notes = append(append([]Note{}, s.leftOut...), append(s.foreign, notes...)...)
	v.report.Apps = s.apps()
	if s.storage.stream != nil {
		v.report.Sequence = s.storage.stream.State.LastSeq
	}
	persisting, changing, err := v.settle(ctx, started, differences)
	if err != nil {
		return err
	}
	v.report.Differences = persisting
	v.report.Notes = append(v.report.Notes, changing...)
	return nil
}

// apps counts the apps that any side knows.
func (s *sides) apps() int {
	ids := map[subjects.AppID]struct{}{}
	for id := range s.current {
		ids[id] = struct{}{}
	}
	for id := range s.events {
		ids[id] = struct{}{}
	}
	for id := range s.entries {
		ids[id] = struct{}{}
	}
	return len(ids)
}

// judge finds the differences of one look.
func (v *looker) judge(s *sides) ([]Difference, []Note) {
	if len(s.blocked) > 0 {
		return s.blocked, nil
	}
	var differences []Difference
	c := comparison{
		app: v.cfg.App, watched: v.watched,
		bucket: v.entries(), now: time.Now(),
		awaits:   s.awaits,
		refused:  v.refused(s),
		believed: s.believed,
	}
	if s.storage.stream == nil {
		c.noStream = true
		differences = append(differences, Difference{
			Kind: DifferenceStreamMissing, Side: SideStream, Detail: fmt.Sprintf("there is no stream %s", v.cfg.Stream),
		})
	} else {
		c.streamEnd = s.storage.stream.State.LastSeq
		c.streamFirst = s.storage.stream.State.FirstSeq
		c.keepsNewest = s.storage.stream.Config.Retention == jetstream.LimitsPolicy
	}
	if s.storage.bucket == nil {
		c.noBucket = true
		differences = append(differences, Difference{
			Kind: DifferenceBucketMissing, Side: SideBucket, Detail: fmt.Sprintf("there is no bucket %s", v.cfg.Bucket),
		})
	}
	if s.believed == nil {
		differences = append(differences, v.judgeWhole(s)...)
	}
	for subject, sequence := range s.keys {
		key, err := subjects.ParseBucketSubject(v.cfg.Bucket, subject)
		if err != nil {
			key = subject
		}
		differences = append(differences, Difference{
			Key: key, Kind: DifferenceForeignKey, Side: SideBucket, at: subject,
			Detail: fmt.Sprintf("a key that is no app's in the bucket, at sequence %d of its stream", sequence),
		})
	}
	found, notes := c.compare(s.current, s.events, s.entries)
	differences = append(differences, found...)
	sortDifferences(differences)
	return differences, notes
}

// judgeWhole finds what is about stream and bucket as a whole: another cluster's name, another history.
// A running bridge looks at both by itself.
func (v *looker) judgeWhole(s *sides) (differences []Difference) {
	for _, i := range []struct {
		side Side
		info *jetstream.StreamInfo
	}{{SideStream, s.storage.stream}, {SideBucket, s.storage.bucket}} {
		if i.info == nil {
			continue
		}
		if name := s.storage.otherName(i.info.Config); name != "" {
			differences = append(differences, Difference{
				Kind: DifferenceClusterName, Side: i.side,
				Detail: fmt.Sprintf("it names the cluster %q, --cluster-name is %q: a bridge with this name would change ce-source", name, v.cfg.ClusterName),
			})
		}
	}
	if err := checkHistory(lastPublished(s.events, s.entries), s.version, s.storage.accepted()); err != nil {
		differences = append(differences, Difference{Kind: DifferenceHistory, Side: SideCluster, Detail: err.Error()})
	}
	return differences
}

// entries is the bucket as the projector writes it.
func (v *looker) entries() *bucket {
	return v.newBucket(v.js)
}

// refused tells what the publisher would say of a state.
func (v *looker) refused(s *sides) func(subjects.AppID, state, *record) error {
	var limit int64
	if s.storage.stream != nil {
		limit = int64(s.storage.stream.Config.MaxMsgSize)
	}
	e := v.newEncoder(func() int { return maxMessage(v.nc, limit) })
	return func(id subjects.AppID, now state, prev *record) error {
		if prev != nil && prev.exists() && prev.uid != string(now.service.UID) {
			prev = &record{kind: subjects.Deleted, sequence: prev.sequence} // a delete comes between
		}
		_, err := e.encode(id, newUpsert(now, !prev.exists()), prev)
		return err
	}
}

// doubt is something that differed at the first look and at each one since.
type doubt struct {
	differences []Difference // of the newest look
	first       []Difference
	since       time.Time // of the first look that showed the same
}

// settle looks at what differs again and again until it has persisted
// unchanged for the settle time, or is gone. What keeps changing for ten times
// as long counts as a difference if the side that is behind did not move in
// all that time, and is a note otherwise.
func (v *verifier) settle(ctx context.Context, started time.Time, differences []Difference) (persisting []Difference, changing []Note, err error) {
	persisting = []Difference{}
	doubts := map[string]*doubt{}
	for subject, found := range bySubject(differences) {
		doubts[subject] = &doubt{differences: found, first: found, since: started}
	}
	pause := min(max(v.opts.Settle/5, 20*time.Millisecond), time.Second)
	looked := started
	for {
		for subject, d := range doubts {
			if looked.Sub(d.since) >= v.opts.Settle+d.bear() {
				persisting = append(persisting, d.differences...)
				delete(doubts, subject)
			}
		}
		for subject, d := range doubts {
			if looked.Sub(started) <= settleRounds*v.opts.Settle+d.bear() {
				continue
			}
			if d.stuck() {
				persisting = append(persisting, d.differences...)
			} else {
				changing = append(changing, d.note())
			}
			delete(doubts, subject)
		}
		if len(doubts) == 0 {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
		looked = time.Now()
		s, err := v.look(ctx, selectionOf(doubts))
		if err != nil {
			return nil, nil, err
		}
		again, _ := v.judge(s)
		found := bySubject(again)
		for subject, d := range doubts {
			switch now := found[subject]; {
			case len(now) == 0:
				delete(doubts, subject)
			case words(now) != words(d.differences):
				d.differences, d.since = now, looked
			}
		}
	}
	sortDifferences(persisting)
	slices.SortFunc(changing, func(a, b Note) int { return strings.Compare(a.Key, b.Key) })
	return persisting, changing, nil
}

// bear is for how much longer than others it may persist.
func (d *doubt) bear() (more time.Duration) {
	for _, difference := range d.differences {
		more = max(more, difference.bear)
	}
	return more
}

// stuck tells whether one of the sides that are wrong stands where it stood.
func (d *doubt) stuck() bool {
	for _, now := range d.differences {
		for _, then := range d.first {
			same := now.StreamSequence == then.StreamSequence
			if now.Side == SideBucket {
				same = now.BucketSequence == then.BucketSequence
			}
			if now.Side == then.Side && same {
				return true
			}
		}
	}
	return false
}

func (d *doubt) note() Note {
	last := d.differences[0]
	return Note{App: last.App, Key: last.Key, Kind: NoteChanging, Detail: "differed at every look and went on changing, at last: " + last.Detail}
}

func bySubject(differences []Difference) map[string][]Difference {
	found := map[string][]Difference{}
	for _, d := range differences {
		found[d.subject()] = append(found[d.subject()], d)
	}
	return found
}

// words is what a difference says, versions and sequences included.
func words(differences []Difference) string {
	var b strings.Builder
	for _, d := range differences {
		b.WriteString(string(d.Kind))
		if d.Kind != DifferenceHistory { // which names the newest version of all
			b.WriteString(" " + d.Detail)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// selectionOf confines a look to what is in doubt; nil is a look at all.
func selectionOf(doubts map[string]*doubt) *selection {
	only := &selection{apps: map[subjects.AppID]struct{}{}, keys: map[string]struct{}{}}
	for _, d := range doubts {
		for _, difference := range d.differences {
			switch {
			case difference.Kind == DifferenceHistory:
				return nil // it is in whichever app is ahead
			case difference.App != nil:
				only.apps[difference.id] = struct{}{}
			case difference.Kind == DifferenceForeignKey:
				only.keys[difference.at] = struct{}{}
			}
		}
	}
	return only
}

// until tries op until it works, waiting will not help, or the timeout is over.
func (v *verifier) until(ctx context.Context, what string, op func(context.Context) error) error {
	wait, cancel := context.WithTimeoutCause(ctx, v.opts.Timeout, errNoAnswer)
	defer cancel()
	var last error
	var doubt patience
	err := retry(wait, func() error {
		err := op(wait)
		if err == nil {
			return nil
		}
		if wait.Err() == nil || last == nil {
			last = err
		}
		return doubt.check(err)
	}, func(err error, _ time.Duration) { v.log.Debug("waiting for "+what, zap.Error(err)) })
	if errors.Is(err, errNoAnswer) {
		return fmt.Errorf("%s did not answer within %s: %w", what, v.opts.Timeout, last)
	}
	return err
}

// errNoAnswer ends a wait whose time is over.
var errNoAnswer = errors.New("no answer in time")
