package appwatch_test

import (
	"testing"

	"github.com/appbridge/appbridge/testdata/testenv/suite"
)

func TestMain(m *testing.M) { suite.Main(m, func() error { return nil }) }
