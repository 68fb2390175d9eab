package logsvc_test

import (
	"flag"
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

// The tests mostly wait: more of them run at a time than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel overrides it
		panic(err)
	}
	suite.Main(m, func() error { return nil })
}
