package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/appbridge/appbridge/bridge/app"
	kubeapi "github.com/appbridge/appbridge/bridge/kube"
	"github.com/appbridge/appbridge/bridge/retry"
	"github.com/appbridge/appbridge/bridge/watch"
	"github.com/appbridge/appbridge/subjects"
)

// Options are the options of one comparison.
type Options struct {
	// ConfirmFor is for how long a difference must persist unchanged before it counts: a running
	// bridge has changes in progress. Zero: one comparison decides.
	ConfirmFor time.Duration
	// Timeout bounds each wait for NATS or Kubernetes, and the wait for a repair to publish.
	Timeout time.Duration
	// Repair is true if differences are to be repaired.
	Repair bool
	// Repaired, when set, receives each repair as soon as it is done.
	Repaired func(Repair)
}

// Verifier compares the cluster, the stream and the bucket once. All fields are needed.
type Verifier struct {
	Target  *Target
	Options Options
	Log     *zap.Logger
	// Connect makes the first requests to Kubernetes, before anything is compared.
	Connect func(context.Context) error
	// Cluster lists the apps of the cluster.
	Cluster func(context.Context) (*watch.ClusterApps, error)
	// Session publishes once, within timeout, what a bridge that starts now would publish. It does not take
	// the entries of doubtful apps for what was published of them.
	Session func(ctx context.Context, timeout time.Duration, doubtful []subjects.AppID) error

	report *Report
}

// Run compares, and repairs on request. The report is never nil; with an error it is incomplete.
func (v *Verifier) Run(ctx context.Context) (*Report, error) {
	v.report = NewReport()
	if err := v.until(ctx, "Kubernetes", v.Connect); err != nil {
		return v.report, err
	}
	if err := v.verify(ctx); err != nil || !v.Options.Repair || len(v.report.Differences) == 0 {
		return v.report, err
	}
	repairErr := v.repair(ctx)
	if ctx.Err() != nil {
		return v.report, repairErr
	}
	return v.report, errors.Join(repairErr, v.verify(ctx))
}

// verify fills the report with the differences that persist.
func (v *Verifier) verify(ctx context.Context) error {
	started := time.Now()
	s, err := v.read(ctx, nil)
	if err != nil {
		return err
	}
	differences, notes := v.Target.judge(s)
	v.report.Notes = append([]Note{}, slices.Concat(s.skipped, s.foreign, notes)...) // not nil, for the JSON
	v.report.Apps = len(union(maps.Keys(s.current), maps.Keys(s.events), maps.Keys(s.entries)))
	v.report.Sequence = s.end()
	persisting, changing, err := v.confirm(ctx, started, differences)
	if err != nil {
		return err
	}
	v.report.Differences = persisting
	v.report.Notes = append(v.report.Notes, changing...)
	return nil
}

// read reads all three sides and changes nothing. A selection confines what is read of stream and
// bucket. The bucket comes first and the cluster last: a change in between makes later sides newer,
// never older.
func (v *Verifier) read(ctx context.Context, only *selection) (*sides, error) {
	var s *sides
	if err := v.until(ctx, "NATS", func(ctx context.Context) error {
		s = v.Target.newSides()
		return v.Target.readNATS(ctx, s, only)
	}); err != nil {
		return nil, err
	}
	if len(s.blocked) > 0 {
		return s, nil
	}
	if err := v.until(ctx, "Kubernetes", func(ctx context.Context) error {
		cluster, err := v.Cluster(ctx)
		if err == nil {
			s.addCluster(cluster)
		}
		return err
	}); err != nil {
		return nil, err
	}
	if only != nil {
		maps.DeleteFunc(s.current, func(id subjects.AppID, _ app.State) bool {
			_, selected := only.apps[id]
			return !selected
		})
	}
	return s, nil
}

func (s *sides) addCluster(cluster *watch.ClusterApps) {
	s.current, s.pending, s.version = cluster.Current, cluster.Pending, cluster.Version
	for _, ns := range cluster.Unknown {
		s.skipped = append(s.skipped, Note{
			Kind:   NoteNamespace,
			Detail: fmt.Sprintf("nothing is in namespace %s, and whether it exists is not known: the right get on it is missing", ns),
		})
	}
	for key, err := range cluster.Skipped {
		s.skipped = append(s.skipped, Note{Kind: NoteSkipped, Detail: fmt.Sprintf("Knative Service %s is skipped: %v", key, err)})
	}
	slices.SortFunc(s.skipped, compareNotes)
}

func (v *Verifier) until(ctx context.Context, server string, op func(context.Context) error) error {
	return UntilAnswered(ctx, v.Log, v.Options.Timeout, server, op)
}

// UntilAnswered calls op until it succeeds or cannot succeed any more, for timeout at most.
func UntilAnswered(ctx context.Context, log *zap.Logger, timeout time.Duration, server string, op func(context.Context) error) error {
	wait, cancel := context.WithTimeoutCause(ctx, timeout, errNoAnswer)
	defer cancel()
	var last error
	var doubt kubeapi.Patience
	err := retry.Do(wait, func() error {
		err := op(wait)
		if err == nil {
			return nil
		}
		if wait.Err() == nil || last == nil {
			last = err
		}
		return doubt.Check(err)
	}, func(err error, _ time.Duration) { log.Debug("waiting for "+server, zap.Error(err)) })
	if errors.Is(err, errNoAnswer) {
		return fmt.Errorf("%s did not answer within %s: %w", server, timeout, last)
	}
	return err
}

var errNoAnswer = errors.New("no answer in time")
