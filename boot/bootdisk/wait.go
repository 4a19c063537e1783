package bootdisk

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Wait finds the booted disk as Find does, and where no disk matches yet looks again until limit is over: drivers of
// slow buses find their disks some time after they were loaded. more, if not nil, is called before it looks again, to
// load the drivers of what has appeared.
func (f *Finder) Wait(ctx context.Context, esp string, limit time.Duration, more func()) (*Disk, error) {
	deadline := time.Now().Add(limit)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		d, err := f.Find(esp)
		if err == nil {
			// The table is read before the kernel has made the nodes of its partitions; these follow within a moment.
			if err = d.complete(); err == nil {
				return d, nil
			}
		} else if !errors.Is(err, ErrNone) {
			return nil, err
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("%w (waited %s)", err, limit)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
		if more != nil {
			more()
		}
	}
}

func (d *Disk) complete() error {
	if d.Optical() {
		return nil
	}
	for _, p := range d.Table.Partitions {
		if d.nodes[p.Number] == "" {
			return fmt.Errorf("%s: the kernel shows no device for partition %d (%s)", d.Path, p.Number, p.Name)
		}
	}
	return nil
}
