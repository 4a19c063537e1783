package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Disks are read for one caller at a time; who waits too long is told so, and a host without them says so.
func TestDisks(t *testing.T) {
	reading, done := make(chan struct{}), make(chan struct{})
	h := &Host{looking: make(chan struct{}, 1), cfg: Config{Disks: func(ctx context.Context, _ mesh.BootInfo, _ *mesh.InstallConfig) (hostapi.Disks, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("nothing bounds it")
		}
		reading <- struct{}{}
		<-done
		return hostapi.Disks{Target: "/dev/sda"}, nil
	}}}
	first := make(chan error, 1)
	go func() {
		d, err := h.Disks(context.Background())
		if err == nil && d.Target != "/dev/sda" {
			err = errors.New("another answer")
		}
		first <- err
	}()
	<-reading
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	var ce *mesh.CallError
	if _, err := h.Disks(ctx); !errors.As(err, &ce) || ce.Code != mesh.CodeUnavailable {
		t.Errorf("a second caller: %v", err)
	}
	close(done)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if _, err := (&Host{}).Disks(context.Background()); !errors.As(err, &ce) || ce.Code != mesh.CodeUnavailable {
		t.Errorf("without: %v", err)
	}
}
