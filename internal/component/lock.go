package component

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/mesh/seat"
)

// lockWait is how long Lock waits for an instance that is stopping.
const lockWait = 5 * time.Second

// Alone is a Component.Serve: it takes the state folder, and serves what open makes of it on the seat's socket.
func Alone(open func(r Run) (*seat.Server, error)) func(context.Context, Run) error {
	return func(ctx context.Context, r Run) error {
		release, err := Lock(ctx, r.State)
		if err != nil {
			return err
		}
		defer release()
		s, err := open(r)
		if err != nil {
			return err
		}
		return s.ListenAndServe(ctx, r.SeatSocket)
	}
}

// Lock takes the state folder dir for this process, so that no two instances ever write to it. The lock
// goes with the process, however that ends; release it earlier by the returned function.
func Lock(ctx context.Context, dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state folder: %w", err)
	}
	deadline := time.Now().Add(lockWait)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("lock the state folder %s: %w; another instance uses it and must end first", dir, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}
