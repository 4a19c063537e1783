package raise

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// restartWait is how long a restarted controller may take to answer all its verbs again.
const restartWait = 5 * time.Minute

// Step 9. Everything declared is ready, and every verb of every component's seat answers; the
// controller's once more after a restart that could not have used the seed.
func observeConfirmed(ctx context.Context, w *walk) (observation, error) {
	if w.confirmed {
		return done()
	}
	missing, err := w.resources(ctx)
	if err != nil {
		return observation{}, err
	}
	if missing != "" {
		return waiting("%s", missing)
	}
	return waiting("the seats are asked")
}

func actConfirm(ctx context.Context, w *walk) error {
	missing, err := w.resources(ctx)
	if err != nil {
		return err
	}
	if missing != "" {
		return errNotYet // what is missing is starting, and the step's observation says so
	}
	for _, seat := range componentSeats {
		if err := w.askSeat(ctx, seat); err != nil {
			return err
		}
	}
	w.say("giving the mesh CA to the vault")
	if err := w.node.KeepCA(ctx); err != nil {
		return fmt.Errorf("give the mesh CA to the vault: %w", err)
	}
	if err := w.restartWithoutSeed(ctx); err != nil {
		return err
	}
	w.confirmed = true
	return nil
}

func (w *walk) restartWithoutSeed(ctx context.Context) (err error) {
	w.say("restarting the controller with the seed disabled")
	if err := w.node.SetSeed(ctx, false); err != nil {
		return fmt.Errorf("disable the seed: %w", err)
	}
	defer func() {
		// Also after Ctrl-C or a failure: the seed is what a node falls back to.
		if e := w.node.SetSeed(context.WithoutCancel(ctx), true); e != nil {
			err = errors.Join(err, fmt.Errorf("enable the seed again: %w", e))
		}
	}()
	if err := w.node.Restart(ctx, controllerKey); err != nil {
		return fmt.Errorf("restart %s: %w", controllerKey, err)
	}
	wait, cancel := context.WithTimeout(ctx, restartWait)
	defer cancel()
	for {
		missing, err := w.resources(wait, moduleController)
		if err == nil && missing != "" {
			err = errors.New(missing)
		}
		if err == nil {
			err = w.askSeat(wait, mesh.SeatController)
		}
		if err == nil {
			return nil
		}
		if w.pause(wait) != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the controller did not answer within %s after a restart without the seed: %w", restartWait, err)
		}
	}
}

// askSeat has every verb that a seat describes answered: by a probe, and where it changes nothing by a
// real call too.
func (w *walk) askSeat(ctx context.Context, seat string) error {
	w.say("asking the seat %s", seat)
	if err := w.node.Call(ctx, seat, mesh.VerbPing, nil, nil); err != nil {
		return fmt.Errorf("%s does not answer ping: %w", seat, err)
	}
	var verbs []mesh.VerbInfo
	if err := w.node.Call(ctx, seat, mesh.VerbDescribe, nil, &verbs); err != nil {
		return fmt.Errorf("%s does not answer describe: %w", seat, err)
	}
	if len(verbs) == 0 {
		return fmt.Errorf("%s describes no verb", seat)
	}
	var failed []string
	for _, v := range verbs {
		err := w.node.Call(ctx, seat, v.Name, nil, nil, mesh.Probe())
		if err == nil && !v.Changes {
			err = answered(w.node.Call(ctx, seat, v.Name, nil, nil))
		}
		if err != nil {
			failed = append(failed, fmt.Sprintf("%s (%v)", v.Name, err))
		}
	}
	if failed != nil {
		return fmt.Errorf("%s does not answer %s", seat, strings.Join(failed, ", "))
	}
	return nil
}

// answered takes a refusal of missing parameters, or of a name that is not there, as the answer it is.
func answered(err error) error {
	var refusal *mesh.CallError
	if errors.As(err, &refusal) && slices.Contains([]string{mesh.CodeBadParams, mesh.CodeNotFound}, refusal.Code) {
		return nil
	}
	return err
}
