package bridge

import "github.com/appbridge/appbridge/bridge/appsvc"

var _ appsvc.Cache = (*Bridge)(nil)
