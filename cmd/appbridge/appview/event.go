package appview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// timeForm is RFC 3339 with all digits of the server's clock: a time that is copied into --at or
// --since selects the event that it was printed with.
const timeForm = "2006-01-02T15:04:05.000000000Z07:00"

// noNews are the texts of conditions that have none of their own, whatever their status.
var noNews = []string{"Configuration is ready", "Routes are ready", "Service is ready"}

// maxMessage bounds the text of a condition on a line, in columns.
const maxMessage = 120

// Event is the line of an event: when the server stored it, the app, the kind, and what changed. It
// decodes the App and the one before.
func Event(a *App, style Style) string {
	when := unknown
	if at := a.Changed(); !at.IsZero() {
		when = at.In(style.Now.Location()).Format(timeForm)
	}
	words := append(changed(a, style), marks(a)...)
	line := style.paint(when, faint) + gap + style.paint(Safe(a.ID.String()), bold) + gap + string(a.Kind)
	if len(words) > 0 {
		line += gap + strings.Join(words, ", ")
	}
	return line
}

func changed(a *App, style Style) []string {
	status := func(word string) string {
		return style.paint(Safe(cmp.Or(word, "none")), statusColor(cmp.Or(word, unknown)))
	}
	now, old := decode(a.Body), decode(a.Old)
	var words []string
	switch a.Kind {
	case subjects.Created:
		words = append(words, "status "+status(a.Status))
		if text := image(now); text != "" {
			words = append(words, "image "+Safe(short(text)))
		}
	case subjects.Deleted:
		return append(words, "last status "+status(a.PreviousStatus))
	default:
		if a.Status != a.PreviousStatus {
			words = append(words, "status "+status(a.PreviousStatus)+" -> "+status(a.Status))
		}
		words = append(words, differences(old, now)...)
	}
	if before := podReason(old); string(a.PodReason) != before {
		words = append(words, reasonChange(a, before))
	}
	if text := message(now, a.Status); text != "" && a.Status != "ACTIVE" && text != message(old, a.Status) && !slices.Contains(noNews, text) {
		words = append(words, "message "+cut(Safe(oneLine(text)), maxMessage))
	}
	if len(words) == 0 {
		words = append(words, "status "+status(a.Status))
	}
	return words
}

// reasonChange is what keeps pods from serving now, and what did before.
func reasonChange(a *App, before string) string {
	text := "reason "
	if before != "" {
		text += Safe(before) + " -> "
	}
	if a.PodReason == "" {
		return text + "none"
	}
	text += Safe(string(a.PodReason))
	if a.ReasonRevision != "" && a.ReasonRevision != a.Revision {
		text += " of " + Safe(a.ReasonRevision)
	}
	return text
}

// differences are those between two Apps that an operator looks for. There is none without both.
func differences(old, now *appv1.App) []string {
	if old == nil || now == nil {
		return nil
	}
	var words []string
	differs := func(what, before, after string) {
		if before != after {
			words = append(words, what+" "+Safe(cmp.Or(before, "none"))+" -> "+Safe(cmp.Or(after, "none")))
		}
	}
	differs("replicas", fmt.Sprint(old.GetStatus().GetCurrentReplicas()), fmt.Sprint(now.GetStatus().GetCurrentReplicas()))
	differs("image", short(image(old)), short(image(now)))
	differs("url", old.GetStatus().GetIngress().GetPublicUrl(), now.GetStatus().GetIngress().GetPublicUrl())
	if image(old) == image(now) && !proto.Equal(old.GetSpec(), now.GetSpec()) {
		words = append(words, "spec changed")
	}
	return words
}

// short is the last part of an image's name.
func short(image string) string { return image[strings.LastIndexByte(image, '/')+1:] }

// marks are what the headers report of the event itself.
func marks(a *App) []string {
	var words []string
	if a.Merged > 0 {
		words = append(words, fmt.Sprintf("%d merged", a.Merged))
	}
	if a.Skipped > 0 {
		words = append(words, fmt.Sprintf("%d skipped", a.Skipped))
	}
	if a.Synthesized {
		words = append(words, "found by a resync")
	}
	if a.FinalUnknown {
		words = append(words, "last state not observed")
	}
	if len(a.Truncated) > 0 {
		words = append(words, "truncated "+Safe(strings.Join(a.Truncated, " ")))
	}
	return words
}

// Instant is a time as the lines show it.
func Instant(t time.Time) string { return t.Format(timeForm) }
