package appsvc

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/appbridge/appbridge/subjects"
	"github.com/appbridge/appbridge/subjects/appv1"
)

// A page is, byte by byte, the ListResponse of its apps.
func TestPageIsEncodedWhole(t *testing.T) {
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
