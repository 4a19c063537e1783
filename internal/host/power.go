package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"kingpost/internal/host/sdnotify"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// stopTime bounds the orderly stop of everything; a resource's own grace is at most ten minutes.
const stopTime = 12 * time.Minute

// Power begins to stop the node: "reboot" or "poweroff". It happens once.
func (h *Host) Power(action string) error {
	if !h.powering.CompareAndSwap(false, true) {
		return &hostapi.Error{Status: http.StatusConflict, Code: mesh.CodeConflict, Message: "the node is going down already"}
	}
	h.power <- action
	return nil
}

// stopNode stops everything in order, dependents first, and then asks PID 1. What does not stop in time is
// no reason to stay up: PID 1 kills what is left.
func (h *Host) stopNode(ctx context.Context, action string) error {
	h.notify(sdnotify.Status("stopping for " + action))
	stop, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	if err := h.super.StopAll(stop); err != nil {
		if ctx.Err() != nil {
			return nil // PID 1 is ahead of us
		}
		h.cfg.Log.WithError(err).Warn("host: not everything stopped in order")
	}
	if err := h.cfg.Signal(action); err != nil {
		return errors.Join(fmt.Errorf("ask PID 1 for %s: %w", action, err))
	}
	return nil
}
