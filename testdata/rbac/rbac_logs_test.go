package rbac_test

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The chart's Role for logs is the one that docs/logs.md explains.
func TestLogsRoleIsDocumented(t *testing.T) {
	t.Parallel()
	suite.Slow(t, "builds Helm")
	documented := &rbacv1.Role{}
	page := filepath.Join("..", "..", "docs", "logs.md")
	text := suite.Block(t, page, "apiVersion: rbac.authorization.k8s.io/v1")
	if err := yaml.UnmarshalStrict([]byte(text), documented); err != nil {
		t.Fatal(err)
	}
	_, roles, _ := objects(t, render(t, nil))
	i := slices.IndexFunc(roles, func(role client.Object) bool {
		return strings.HasSuffix(role.GetName(), "-logs")
	})
	if i < 0 {
		t.Fatal("the chart has no role for logs")
	}
	if got, want := *rulesOf(roles[i]), documented.Rules; !reflect.DeepEqual(got, want) {
		t.Errorf("the chart has\n%v\n%s has\n%v", got, page, want)
	}
}
