package release

import (
	"cmp"
	"fmt"

	"kingpost/internal/gpt"
)

// A medium is an image that a machine is booted from without being installed: a CD, or the same file on a USB stick. It
// has one slot, as large as its root, and on a stick its data partition grows like that of any disk.

// NewMediumPlan works out the partitions of a medium: ESP, one slot and data. rootSize is the root's, in bytes.
func NewMediumPlan(s DiskSpec, rootSize int64) (Plan, error) {
	s.RootSize = (rootSize + gpt.Align - 1) / gpt.Align * gpt.Align
	p, err := NewPlan(s)
	if err != nil {
		return Plan{}, err
	}
	return p.only(PartESP, PartRootA, PartData), nil
}

// NewDataPlan works out a data disk: a data partition alone, for a node whose medium cannot be written to.
func NewDataPlan(s DiskSpec) (Plan, error) {
	p, err := NewPlan(s)
	if err != nil {
		return Plan{}, err
	}
	return p.only(PartData), nil
}

// only leaves out all other partitions, and the room that they had.
func (p Plan) only(names ...string) Plan {
	out := p
	out.Partitions = nil
	at := int64(gpt.Align)
	for _, n := range names {
		q, ok := p.Partition(n)
		if !ok {
			continue
		}
		q.Number, q.Start = len(out.Partitions)+1, at
		at += q.Size
		out.Partitions = append(out.Partitions, q)
	}
	out.Size = at + gpt.Align
	return out
}

// IsMedium reports whether t is of a medium: ESP, one slot and data.
func IsMedium(t *gpt.Table) bool { return has(t, PartESP, PartRootA, PartData) }

// IsDataDisk reports whether t is of a data disk: it has a data partition and nothing else.
func IsDataDisk(t *gpt.Table) bool { return has(t, PartData) }

// has reports whether t has the named partitions and no others.
func has(t *gpt.Table, names ...string) bool {
	for _, n := range names {
		if _, ok := find(t, n); !ok {
			return false
		}
	}
	return len(t.Partitions) == len(names)
}

// checkContents says what of c has no place in p.
func (p Plan) checkContents(c Contents) error {
	for _, q := range []struct {
		name string
		size int64
		hint string
	}{
		{PartESP, cmp.Or(int64(len(c.ESP)), -1), ""},
		{PartRootA, c.RootA.size(), "give the slots more room in the recipe (slots.root)"},
		{PartData, c.Data.size(), "plan a larger data partition"},
	} {
		part, ok := p.Partition(q.name)
		switch {
		case q.size < 0:
		case !ok:
			return fmt.Errorf("the plan has no partition %s", q.name)
		case q.size > part.Size:
			return fmt.Errorf("%d bytes do not fit into %s of %d bytes; %s", q.size, q.name, part.Size, q.hint)
		}
	}
	return nil
}

// size is how many bytes c has; -1 for none.
func (c *Content) size() int64 {
	if c == nil {
		return -1
	}
	return c.Size
}
