package appsvc

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/appbridge/appbridge/bridge/app"
	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// The reply of a full page has no more bytes than it may, whatever its token.
func TestPageFits(t *testing.T) {
	t.Parallel()
	const room = 8 << 10
	last := &app.CachedService{}
	last.Namespace, last.Name, last.ID.Name = strings.Repeat("n", 63), strings.Repeat("s", 253), strings.Repeat("<", 2000)
	last.CreationTimestamp, last.Status = metav1.Unix(math.MaxInt32, 0), "SCALING_DOWN"
	token, err := (&listQuery{order: order{{by: byStatus}, {by: byCreated}, {by: byName}}}).token(last)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		for size := 1; size < 1000; size += 7 {
			p := newPage(form, room)
			p.rest.Token, p.rest.TotalCount = token, math.MaxInt64
			for full := false; !full; {
				if full, err = p.add(&appv1.App{Metadata: &appv1.Meta{Id: &appv1.Identifier{Name: strings.Repeat("x", size)}}}); err != nil {
					t.Fatal(err)
				}
			}
			rep, err := p.reply()
			if err != nil {
				t.Fatal(err)
			}
			if got := len(rep.data); got > room || got < room/2 {
				t.Errorf("%s, names of %d bytes: the page has %d bytes, of %d", form, size, got, room)
			}
		}
	}
}

// A page is, byte by byte, the ListResponse of its apps.
func TestPageIsEncodedWhole(t *testing.T) {
	t.Parallel()
	for _, form := range []string{subjects.ContentTypeJSON, subjects.ContentTypeProtobuf} {
		for _, apps := range []int{0, 1, 3} {
			for _, want := range []*appv1.ListResponse{{}, {Token: `t"k`}, {TotalCount: 7}, {Token: "t", TotalCount: 7}} {
				p := newPage(form, 1<<20)
				p.rest.Token, p.rest.TotalCount = want.GetToken(), want.GetTotalCount()
				for i := range apps {
					app := &appv1.App{Metadata: &appv1.Meta{Id: &appv1.Identifier{Name: fmt.Sprintf("app %d", i)}}}
					want.Apps = append(want.Apps, proto.CloneOf(app))
					if full, err := p.add(app); full || err != nil {
						t.Fatalf("app %d: full %v, %v", i, full, err)
					}
				}
				rep, err := p.reply()
				if err != nil {
					t.Fatal(err)
				}
				data, _, err := appv1.Encode(want, form)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(rep.data), string(data)); diff != "" {
					t.Errorf("%s, %d apps: got - want +:\n%s", form, apps, diff)
				}
			}
		}
	}
}
