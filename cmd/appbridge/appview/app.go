package appview

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// App is an app as of one event of it: what the headers hold, and the messages, which are decoded
// when they are shown. It is not changed after it was made.
type App struct {
	ID       subjects.AppID
	Kind     subjects.EventKind // of the event
	Sequence uint64             // of the event in the stream

	MessageID        string
	UID              string
	ResourceVersion  string
	DeletedVersion   string // the value of subjects.HeaderDeletedResourceVersion
	Generation       uint64
	Revision         string
	Status           string // the value of subjects.HeaderAppStatus, empty for none
	PreviousStatus   string
	PodReason        subjects.Reason // what keeps pods from serving, empty for nothing
	ReasonRevision   string          // whose pods have the reason
	PreviousSequence uint64
	Merged           int
	Synthesized      bool
	FinalUnknown     bool
	Truncated        []string
	Skipped          int       // events that this one stands in for
	Differs          bool      // after a restart: from what was known before
	Time             time.Time // the event's ce-time, which is the object's; zero: none
	Stored           time.Time // when the server stored the event; zero: not known

	// Body decodes the App, of a delete the last one. It is nil, or returns nil, without one.
	Body func() *appv1.App
	// Old decodes the App before the event, likewise.
	Old func() *appv1.App
}

// Changed is when the app changed last: when the event was stored, else the object's own time.
func (a *App) Changed() time.Time {
	if a.Stored.IsZero() {
		return a.Time
	}
	return a.Stored
}

// Gone reports whether the app does not exist any more.
func (a *App) Gone() bool { return a.Kind == subjects.Deleted }

func decode(body func() *appv1.App) *appv1.App {
	if body == nil {
		return nil
	}
	return body()
}

// StatusWord is the status as a table shows it.
func (a *App) StatusWord() string {
	if a.Gone() {
		return Deleted
	}
	return cmp.Or(a.Status, unknown)
}

// statusText is the status with what keeps pods from serving.
func (a *App) statusText() string {
	if a.PodReason == "" || a.Gone() {
		return a.StatusWord()
	}
	return a.StatusWord() + " (" + string(a.PodReason) + ")"
}

// statusColor is the color of the status: that of a failure also while failing pods leave an app
// active.
func (a *App) statusColor() string {
	if a.PodReason.IsFailure() && !a.Gone() {
		return red
	}
	return statusColor(a.StatusWord())
}

// podReason is what an App says keeps its pods from serving.
func podReason(app *appv1.App) string {
	for _, c := range app.GetStatus().GetConditions() {
		if substate := c.GetSubstate(); substate != appv1.Status_SUBSTATE_UNSPECIFIED {
			return substate.String()
		}
	}
	return ""
}

// Deleted is the status of an app that is gone.
const Deleted = "DELETED"

// unknown stands for a value that an app does not have.
const unknown = "-"

// message is the message of the condition that the status comes from: the first with that status.
func message(app *appv1.App, status string) string {
	conditions := app.GetStatus().GetConditions()
	at := slices.IndexFunc(conditions, func(c *appv1.Condition) bool {
		return strings.TrimPrefix(c.GetDeploymentStatus().String(), "DEPLOYMENT_STATUS_") == status && c.GetMessage() != ""
	})
	if at < 0 {
		return ""
	}
	return conditions[at].GetMessage()
}

// Reason is the id of an app with its status, what keeps pods from serving, and the message of its
// condition.
func Reason(a *App) string {
	text := a.ID.String() + " is " + a.statusText()
	if m := message(decode(a.Body), a.Status); m != "" && a.Status != "ACTIVE" {
		text += ": " + oneLine(m)
	}
	return text
}

// oneLine is a message with one space in place of each white space.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// image is the image of the app's container, the first one of a pod.
func image(app *appv1.App) string {
	return app.GetSpec().GetContainer().GetImage()
}

// Less is the order of a table: by project, domain and name.
func Less(a, b subjects.AppID) int {
	return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
}

// Age is a duration as kubectl shows it, in two units at most: 12s, 5m30s, 3h, 4d2h, 2y10d.
func Age(d time.Duration) string {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	switch {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return units(d, time.Second, "s", 0, "")
	case d < 10*time.Minute:
		return units(d, time.Minute, "m", time.Second, "s")
	case d < 3*time.Hour:
		return units(d, time.Minute, "m", 0, "")
	case d < 8*time.Hour:
		return units(d, time.Hour, "h", time.Minute, "m")
	case d < 2*day:
		return units(d, time.Hour, "h", 0, "")
	case d < 8*day:
		return units(d, day, "d", time.Hour, "h")
	case d < 2*year:
		return units(d, day, "d", 0, "")
	default:
		return units(d, year, "y", day, "d")
	}
}

func units(d, unit time.Duration, name string, below time.Duration, belowName string) string {
	text := strconv.FormatInt(int64(d/unit), 10) + name
	if below > 0 && d%unit/below > 0 {
		text += strconv.FormatInt(int64(d%unit/below), 10) + belowName
	}
	return text
}
