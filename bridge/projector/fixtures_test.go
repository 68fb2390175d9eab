package projector

import (
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
)

var testID, testService, testRevision, testEncoder = apptest.ID, apptest.Service, apptest.Revision, encodertest.New
