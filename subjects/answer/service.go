package answer

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// unknownVersion stands for a version that is not a semantic one.
const unknownVersion = "0.0.0"

// AddService adds a micro service. Its version need not be a semantic one, which is all
// that micro takes: then it stands in the metadata alone, under "version".
func AddService(nc *nats.Conn, config micro.Config) (micro.Service, error) {
	config.Metadata["version"] = config.Version
	service, err := micro.AddService(nc, config)
	if errors.Is(err, micro.ErrConfigValidation) {
		config.Version = unknownVersion
		return micro.AddService(nc, config)
	}
	return service, err
}
