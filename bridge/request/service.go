package request

import (
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// unknownVersion stands for a version that is not a semantic one.
const unknownVersion = "0.0.0"

const (
	// maxArriving and maxArrivingBytes are how many requests may wait for the handler of an
	// endpoint, which queues or refuses each at once. The client drops those beyond.
	maxArriving      = 16 << 10
	maxArrivingBytes = 16 << 20
)

// AddEndpoint adds an endpoint whose queue is bounded.
func AddEndpoint(service micro.Service, name, subject string, handle micro.HandlerFunc) error {
	return service.AddEndpoint(name, handle, micro.WithEndpointSubject(subject), micro.WithEndpointPendingLimits(maxArriving, maxArrivingBytes))
}

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
