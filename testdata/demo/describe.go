package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// statusOf is the status of an app in one word: the least well of its
// conditions, "none" before the first.
func statusOf(app *appv1.App) string {
	c := telling(app)
	if c == nil {
		return "none"
	}
	return strings.TrimPrefix(c.GetDeploymentStatus().String(), "DEPLOYMENT_STATUS_")
}

// telling is the condition that tells how the app is.
func telling(app *appv1.App) *appv1.Condition {
	worst := []appv1.Status_DeploymentStatus{
		appv1.Status_DEPLOYMENT_STATUS_STOPPED,
		appv1.Status_DEPLOYMENT_STATUS_FAILED,
		appv1.Status_DEPLOYMENT_STATUS_PENDING,
		appv1.Status_DEPLOYMENT_STATUS_DEPLOYING,
		appv1.Status_DEPLOYMENT_STATUS_ACTIVE,
	}
	conditions := app.GetStatus().GetConditions()
	for _, status := range worst {
		i := slices.IndexFunc(conditions, func(c *appv1.Condition) bool { return c.GetDeploymentStatus() == status })
		if i >= 0 {
			return conditions[i]
		}
	}
	return nil
}

func imageOf(app *appv1.App) string { return app.GetSpec().GetContainer().GetImage() }

// shortImage is the last part of an image's name.
func shortImage(app *appv1.App) string {
	image := imageOf(app)
	return image[strings.LastIndex(image, "/")+1:]
}

// describe says in a few words what an event is about; of an update, what is
// new in it.
func describe(e event) []string {
	var words []string
	switch e.kind {
	case subjects.Created:
		words = append(words, "image "+shortImage(e.app), "status "+statusOf(e.app))
	case subjects.Deleted:
		words = append(words, "last status "+statusOf(e.app))
	case subjects.Updated:
		words = changes(e.old, e.app)
	}
	for _, mark := range []struct{ header, text string }{
		{subjects.HeaderSynthesized, "found by a resync"},
		{subjects.HeaderFinalStateUnknown, "last state not observed"},
	} {
		if e.header.Get(mark.header) != "" {
			words = append(words, mark.text)
		}
	}
	if merged := e.header.Get(subjects.HeaderMergedUpdates); merged != "" {
		words = append(words, "stands for "+merged+" more")
	}
	if left := e.header.Get(subjects.HeaderTruncated); left != "" {
		words = append(words, "without "+left)
	}
	return words
}

func changes(old, now *appv1.App) []string {
	var words []string
	differs := func(what, before, after string) {
		if before != after {
			words = append(words, what+" "+before+" -> "+after)
		}
	}
	differs("status", statusOf(old), statusOf(now))
	differs("replicas", fmt.Sprint(old.GetStatus().GetCurrentReplicas()), fmt.Sprint(now.GetStatus().GetCurrentReplicas()))
	differs("image", shortImage(old), shortImage(now))
	if message := messageOf(now); message != "" && message != messageOf(old) {
		words = append(words, "message: "+short(message))
	}
	if len(words) == 0 {
		words = append(words, other(old, now))
	}
	return words
}

// messageOf is what the telling condition says, empty where that is no news: of
// an app that is well, and the texts that stand for no message.
func messageOf(app *appv1.App) string {
	message := strings.Join(strings.Fields(telling(app).GetMessage()), " ")
	switch {
	case statusOf(app) == "ACTIVE":
		return ""
	case slices.Contains([]string{"Configuration is ready", "Routes are ready", "Service is ready"}, message):
		return ""
	default:
		return message
	}
}

// other names the parts that differ when none of the usual ones does.
func other(old, now *appv1.App) string {
	switch {
	case proto.Equal(old, now):
		return "nothing of the app"
	case !proto.Equal(old.GetSpec(), now.GetSpec()):
		return "spec"
	default:
		return "conditions"
	}
}

func short(text string) string {
	const limit = 80
	runes := []rune(text)
	if len(runes) <= limit {
		return text
	}
	return string(runes[:limit]) + "..."
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
