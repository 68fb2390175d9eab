package subjects_test

import (
	"errors"
	"fmt"

	"github.com/appbridge/appbridge/subjects"
)

func Example() {
	s, err := subjects.New(subjects.DefaultPrefix)
	if err != nil {
		fmt.Println(err)
		return
	}
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "checkout v1.2"}
	subject, err := s.Event(id, subjects.Created)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(subject)

	back, kind, err := s.ParseEvent(subject)
	fmt.Println(back, kind, err)
	// Output:
	// flyte.apps.events.shop.production.checkout=20v1=2E2.created
	// shop/production/checkout v1.2 created <nil>
}

func ExampleEscapeToken() {
	for _, text := range []string{"shop", "v1.2", "a=b", "café", "*", "a b"} {
		token, err := subjects.EscapeToken(text)
		fmt.Println(token, err)
	}
	// Output:
	// shop <nil>
	// v1=2E2 <nil>
	// a=3Db <nil>
	// caf=C3=A9 <nil>
	// =2A <nil>
	// a=20b <nil>
}

func ExampleUnescapeToken() {
	fmt.Println(subjects.UnescapeToken("caf=C3=A9"))
	_, err := subjects.UnescapeToken("caf=c3=a9")
	fmt.Println(err)
	_, err = subjects.UnescapeToken("=61")
	fmt.Println(err)
	// Output:
	// café <nil>
	// unescape token "caf=c3=a9": malformed: escape at 3 is not two upper-case hex digits
	// unescape token "=61": malformed: escape at 0 stands for 'a', which needs none
}

func ExampleAppID_Key() {
	fmt.Println(subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}.Key())
	// Output: shop.production.checkout <nil>
}

func ExampleAppID_Validate() {
	err := subjects.AppID{Domain: "production"}.Validate()
	fmt.Println(err)
	fmt.Println(errors.Is(err, subjects.ErrEmptyPart))
	// Output:
	// app id "/production/": project, name: empty part
	// true
}

func ExampleParseKey() {
	id, err := subjects.ParseKey("shop.production.v1=2E2")
	fmt.Println(id.Name, err)
	// Output: v1.2 <nil>
}

func ExampleNew() {
	_, err := subjects.New("flyte.*")
	fmt.Println(err)
	// Output: subject prefix "flyte.*": invalid name: byte '*', allowed are letters, digits, '-' and '_' in tokens joined by '.'
}

func ExampleSubjects_EventFilter() {
	s, _ := subjects.New(subjects.DefaultPrefix)
	fmt.Println(s.Events())
	fmt.Println(s.EventFilter(subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}))
	// Output:
	// flyte.apps.events.>
	// flyte.apps.events.shop.production.checkout.* <nil>
}

func ExampleSubjects_Logs() {
	s, _ := subjects.New(subjects.DefaultPrefix)
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}
	fmt.Println(s.Logs(subjects.LogTail, id))
	fmt.Println(s.LogsOut("shop", "Vq2dG0"))
	fmt.Println(s.LogsStop("shop", "Vq2dG0"))
	fmt.Println(s.LogsAck("shop", "Vq2dG0", "7"))
	// Output:
	// flyte.apps.logs.tail.shop.production.checkout <nil>
	// flyte.apps.logs.out.shop.Vq2dG0 <nil>
	// flyte.apps.logs.stop.shop.Vq2dG0 <nil>
	// flyte.apps.logs.ack.shop.Vq2dG0.7 <nil>
}

func ExampleSubjects_API() {
	s, _ := subjects.New(subjects.DefaultPrefix)
	id := subjects.AppID{Project: "shop", Domain: "production", Name: "checkout"}
	fmt.Println(s.API(subjects.APIDeleteReplica, id))
	fmt.Println(s.APIList("", ""))
	fmt.Println(s.APIList("shop", ""))
	fmt.Println(s.APIList("shop", "production"))
	// Output:
	// flyte.apps.api.delete-replica.shop.production.checkout <nil>
	// flyte.apps.api.list <nil>
	// flyte.apps.api.list.shop <nil>
	// flyte.apps.api.list.shop.production <nil>
}

func ExampleBucketSubject() {
	fmt.Println(subjects.BucketStream(subjects.DefaultBucket))
	fmt.Println(subjects.BucketFilter(subjects.DefaultBucket))
	fmt.Println(subjects.BucketSubject(subjects.DefaultBucket, "shop.production.checkout"))
	fmt.Println(subjects.ParseBucketSubject(subjects.DefaultBucket, "$KV.flyte-apps.shop.production.checkout"))
	fmt.Println(subjects.InDomain("hub", subjects.BucketSubject(subjects.DefaultBucket, "shop.production.checkout")))
	// Output:
	// KV_flyte-apps
	// $KV.flyte-apps.>
	// $KV.flyte-apps.shop.production.checkout
	// shop.production.checkout <nil>
	// $JS.hub.API.$KV.flyte-apps.shop.production.checkout
}

func ExampleMessageID() {
	id := subjects.MessageID{UID: "3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90", ResourceVersion: "48213", PreviousSequence: 17}
	fmt.Println(id)
	back, err := subjects.ParseMessageID(id.String())
	fmt.Println(back == id, err)
	// Output:
	// 3e0f8a52-58a4-44c6-a1b7-2a9c4f1d6b90/48213/17
	// true <nil>
}

// A reader of all events skips what it does not know, and learns from a notice which of the events
// that it received are no longer part of the history.
func ExampleParseNotice() {
	s, _ := subjects.New(subjects.DefaultPrefix)
	for _, msg := range []struct {
		subject string
		header  map[string]string
	}{
		{"flyte.apps.events.lost", nil},
		{"flyte.apps.events.notice", map[string]string{subjects.HeaderLostFrom: "1040", subjects.HeaderLostTo: "1047"}},
		{"flyte.apps.events.lost.production.checkout.created", nil},
	} {
		switch {
		case s.IsLost(msg.subject):
			continue
		case s.IsNotice(msg.subject):
			lost, err := subjects.ParseNotice(msg.header[subjects.HeaderLostFrom], msg.header[subjects.HeaderLostTo])
			fmt.Println("lost", lost, err)
			fmt.Println(lost.Contains(1039), lost.Contains(1040), lost.Contains(1047), lost.Contains(1048))
		default:
			fmt.Println(s.ParseEvent(msg.subject))
		}
	}
	// Output:
	// lost 1040-1047 <nil>
	// false true true false
	// lost/production/checkout created <nil>
}

func ExampleParseLostRanges() {
	ranges, err := subjects.ParseLostRanges("1040-1047,2101-2101")
	for _, r := range ranges {
		fmt.Println(r.From, r.To)
	}
	fmt.Println(subjects.FormatLostRanges(ranges), err)
	_, err = subjects.ParseLostRanges("1047-1040")
	fmt.Println(err)
	// Output:
	// 1040 1047
	// 2101 2101
	// 1040-1047,2101-2101 <nil>
	// parse lost ranges: parse lost range "1047-1040": malformed: 1047-1040 ends before it begins
}

func ExampleEventKind_Type() {
	fmt.Println(subjects.Deleted.Type())
	// Output: org.flyte.app.deleted.v1
}

func ExampleSource() {
	fmt.Println(subjects.Source("production"))
	fmt.Println(subjects.Source("eu west/1"))
	// Output:
	// /appbridge/production
	// /appbridge/eu%20west%2F1
}

func ExampleCode() {
	fmt.Println(subjects.CodeNotFound, subjects.CodeNotFound.HeaderValue())
	fmt.Println(subjects.ParseCode("429"))
	// Output:
	// NotFound 404
	// ResourceExhausted <nil>
}
