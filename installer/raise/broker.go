package raise

import (
	"context"
)

// Step 5. A broker that accepts connections and drops messages would only be found out by the
// controller, so a message makes the round trip.
func observeBroker(ctx context.Context, w *walk) (observation, error) {
	missing, err := w.resources(ctx, moduleBroker)
	if err != nil {
		return observation{}, err
	}
	if missing != "" {
		return waiting("%s", missing)
	}
	if err := w.node.BrokerTrip(ctx); err != nil {
		return waiting("the broker does not deliver yet: %v", err)
	}
	return done()
}

func actBroker(ctx context.Context, w *walk) error {
	return w.declare(ctx, moduleRegistry, moduleBroker)
}
