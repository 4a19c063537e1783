package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/host/node"
	"kingpost/internal/host/sdnotify"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// stopTime bounds the orderly stop of everything; a resource's own grace is at most ten minutes.
const stopTime = 12 * time.Minute

// Power begins to stop the node: "reboot" or "poweroff". It happens once.
func (h *Host) Power(action string) error {
	if !h.powering.CompareAndSwap(false, true) {
		return errGoingDown()
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

// Reset marks the node to be wiped back to unclaimed and begins to reboot it; PID 1 wipes it on the way up. name must be
// the node's own, so that nobody wipes another one than he means.
func (h *Host) Reset(req hostapi.ResetRequest) error {
	if req.Name != h.Name() {
		return &hostapi.Error{Status: http.StatusConflict, Code: mesh.CodeConflict, Message: fmt.Sprintf("this is the node %s and not %.64q; nothing was changed", h.Name(), req.Name)}
	}
	if h.powering.Load() {
		return errGoingDown()
	}
	b, err := node.ReadConfig(h.cfg.Paths.NodeConfig)
	if err != nil {
		return fmt.Errorf("reset: read node.yaml: %w", err)
	}
	mark := mesh.Reset{Node: h.Name(), KeepClaim: req.KeepClaim}
	if b != nil {
		mark.NodeConfig = node.Sum(b)
	}
	text, err := json.Marshal(mark)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if err := atomicfile.Write(h.cfg.Paths.reset(), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("reset: nothing was changed: %w", err)
	}
	h.cfg.Log.Warn("host: the node is reset: it reboots and is wiped on the way up")
	return h.Power("reboot")
}

func errGoingDown() error {
	return &hostapi.Error{Status: http.StatusConflict, Code: mesh.CodeConflict, Message: "the node is going down already"}
}
