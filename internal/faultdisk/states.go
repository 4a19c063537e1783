package faultdisk

import (
	"fmt"
	"math/rand/v2"
)

// Recording is what was done to a disk.
type Recording struct {
	start *Disk
	Ops   []Op
}

// Record runs f and records what it does to d.
func (d *Disk) Record(f func() error) (*Recording, error) {
	r := &Recording{start: d.Clone()}
	d.mu.Lock()
	d.rec, d.log = true, nil
	d.mu.Unlock()
	err := f()
	d.mu.Lock()
	defer d.mu.Unlock()
	r.Ops, d.rec, d.log = d.log, false, nil
	return r, err
}

// State is a disk that a cut may have left.
type State struct {
	Disk *Disk
	// What says how it came about, so that it can be made again.
	What string
	// Metadata is set where the write that was cut is a small one, or reorders small ones.
	Metadata bool
}

// Options says which states are made.
type Options struct {
	// Tears is how many tears of one large write are tried; all of those of a write of at most SmallWrite bytes are.
	Tears int
	// Orders is how many legal reorderings are tried at each operation.
	Orders int
	Seed   uint64
}

// SmallWrite is up to what a write counts as one of metadata, in bytes.
const SmallWrite = 64 << 10

// States calls f for the states that a cut could have left, each only once: cut after every operation; torn, with the
// first sectors of an operation; and with any part of what was not flushed yet, each of that whole, torn or lost. f
// returning an error ends it.
func (r *Recording) States(o Options, f func(State) error) error {
	rnd := rand.New(rand.NewPCG(o.Seed, 1))
	seen := map[uint64]bool{}
	give := func(d *Disk, small bool, format string, args ...any) error {
		if seen[d.Sum()] {
			return nil
		}
		seen[d.Sum()] = true
		return f(State{d, fmt.Sprintf(format, args...), small})
	}
	now, safe := r.start.Clone(), r.start.Clone()
	first := 0 // the first operation since the last flush
	if err := give(now.Clone(), true, "before the first operation"); err != nil {
		return err
	}
	for i, op := range r.Ops {
		if op.Kind == Sync {
			safe, first = now.Clone(), i+1
			continue
		}
		small := op.Len <= SmallWrite
		for _, k := range tears(op, int64(r.start.sector), o.Tears, small, rnd) {
			d := now.Clone()
			d.apply(op, k)
			if err := give(d, small, "operation %d torn after %d of %d bytes", i, k, op.Len); err != nil {
				return err
			}
		}
		now.apply(op, op.Len)
		if err := give(now.Clone(), small, "cut after operation %d", i); err != nil {
			return err
		}
		for n := range o.Orders {
			d := safe.Clone()
			seed := rnd.Uint64()
			r.reorder(d, first, i+1, rand.New(rand.NewPCG(seed, 2)))
			if err := give(d, small, "operations %d to %d reordered, %d of seed %d", first, i, n, seed); err != nil {
				return err
			}
		}
	}
	return nil
}

// tears are the lengths after which an operation is torn, in whole sectors.
func tears(op Op, sector int64, most int, small bool, rnd *rand.Rand) []int64 {
	all := (op.Len - 1) / sector // the whole operation is no tear
	var out []int64
	if small || all <= int64(most) {
		for k := int64(1); k <= all; k++ {
			out = append(out, k*sector)
		}
		return out
	}
	for range most {
		out = append(out, (1+rnd.Int64N(all))*sector)
	}
	return out
}

// reorder does some of the operations from first to end, in an order by chance, some of them torn.
func (r *Recording) reorder(d *Disk, first, end int, rnd *rand.Rand) {
	for _, i := range rnd.Perm(end - first) {
		op := r.Ops[first+i]
		switch rnd.IntN(8) {
		case 0, 1, 2: // lost
		case 3: // torn
			sectors := op.Len / int64(d.sector)
			if sectors > 1 {
				d.apply(op, (1+rnd.Int64N(sectors-1))*int64(d.sector))
			}
		default:
			d.apply(op, op.Len)
		}
	}
}
