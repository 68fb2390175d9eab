package logsvc

import (
	"context"

	"github.com/appbridge/appbridge/subjects"
)

// NoteReplicas implements Sink.
func (c *collector) NoteReplicas(ctx context.Context, replicas []string, text string) error {
	for _, replica := range replicas {
		if err := c.Note(ctx, subjects.LogNoteReplica, replica, text); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}
