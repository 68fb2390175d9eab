package audit

import (
	"github.com/appbridge/appbridge/bridge/app/apptest"
	"github.com/appbridge/appbridge/bridge/app/encodertest"
)

var testID, testService, testRevision, testEncoder = apptest.ID, encodertest.Service, apptest.Revision, encodertest.New
