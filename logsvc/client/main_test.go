package client

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// The tests mostly wait: more of them run at a time than there are processors.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel overrides it
		panic(err)
	}
	goleak.VerifyTestMain(m)
}
