package apptest

import "github.com/appbridge/appbridge/subjects/appv1"

// Created is the event of a new app. The event shares the App with the caller.
func Created(app *appv1.App) *appv1.WatchResponse {
	return &appv1.WatchResponse{Event: &appv1.WatchResponse_CreateEvent{CreateEvent: &appv1.CreateEvent{App: app}}}
}

// Updated is the event of a changed app. old is the state before, nil if unknown or omitted. The
// event shares both with the caller.
func Updated(app, old *appv1.App) *appv1.WatchResponse {
	return &appv1.WatchResponse{Event: &appv1.WatchResponse_UpdateEvent{
		UpdateEvent: &appv1.UpdateEvent{UpdatedApp: app, OldApp: old},
	}}
}

// Deleted is the event of a deleted app. app is its last known state. The event shares it with the
// caller.
func Deleted(app *appv1.App) *appv1.WatchResponse {
	return &appv1.WatchResponse{Event: &appv1.WatchResponse_DeleteEvent{DeleteEvent: &appv1.DeleteEvent{App: app}}}
}
