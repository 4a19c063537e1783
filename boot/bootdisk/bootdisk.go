// Package bootdisk finds the disk that this machine was booted from and the nodes of its partitions.
//
// It decides by what the boot loader said (the GUID of the ESP it was started from) and by partition tables, never by
// device names, and it never guesses: two candidates are an error that names both. It only reads. Start with Finder.Find.
package bootdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sort"
	"strconv"
	"strings"

	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// ErrNone is wrapped by the error of Find when no disk matches, or none matches yet.
var ErrNone = errors.New("no disk matches")

// ErrMany is wrapped by the error of Find when several disks match.
var ErrMany = errors.New("several disks match")

// Device is an opened disk.
type Device interface {
	io.ReaderAt
	io.Closer
}

// Finder looks at the disks of a machine.
type Finder struct {
	Sys  fs.FS // /sys
	Dev  string
	Open func(path string) (Device, error)
	// Optical says that the boot loader was started from no partition, as from a CD: where its GUID is not known, optical
	// media then come before disks. Else they come after them.
	Optical bool
}

// Disk is a disk with its partition table.
type Disk struct {
	Name  string // the kernel's, "vda"
	Path  string // "/dev/vda"
	Size  int64  // bytes
	Table *gpt.Table

	nodes map[int]string
}

// Node is the device of the partition with this number, "/dev/vda2"; empty when the kernel shows none.
func (d *Disk) Node(number int) string { return d.nodes[number] }

// SetNode says which device is the partition with this number, where the kernel shows none.
func (d *Disk) SetNode(number int, node string) { d.nodes[number] = node }

// Optical reports whether d is an optical medium: nobody writes to it, and the kernel shows no partitions of it.
func (d *Disk) Optical() bool { return optical(d.Name) }

func optical(name string) bool {
	rest, ok := strings.CutPrefix(name, "sr")
	return ok && rest != "" && rest[0] >= '0' && rest[0] <= '9'
}

// Partition finds a partition by its GPT name.
func (d *Disk) Partition(name string) (gpt.Partition, bool) {
	for _, p := range d.Table.Partitions {
		if p.Name == name {
			return p, true
		}
	}
	return gpt.Partition{}, false
}

// Find returns the booted disk: the one that has a partition with the GUID esp; where esp is empty (the boot loader
// did not say) the one that has our ESP and slots. Its data partition may be missing: the node then still comes up.
func (f *Finder) Find(esp string) (*Disk, error) {
	want := "has the partitions " + release.PartESP + " and " + release.PartRootA + " or " + release.PartRootB
	match := func(t *gpt.Table) bool {
		d := Disk{Table: t}
		_, esp := d.Partition(release.PartESP)
		return esp && len(release.Slots(t)) > 0
	}
	if esp != "" {
		want = "has the partition " + strings.ToLower(esp) + " that the boot loader was started from"
		g, err := gpt.ParseGUID(esp)
		if err != nil {
			return nil, fmt.Errorf("the boot loader's partition GUID: %w", err)
		}
		match = func(t *gpt.Table) bool {
			for _, p := range t.Partitions {
				if p.GUID == g {
					return true
				}
			}
			return false
		}
	}
	disks, seen := f.List()
	var found []*Disk
	for _, d := range disks {
		if match(d.Table) {
			found = append(found, d)
		}
	}
	if esp == "" {
		found = f.prefer(found)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		if len(seen) == 0 {
			return nil, fmt.Errorf("%w: this machine shows no disk at all; is the driver for its controller in the release?", ErrNone)
		}
		return nil, fmt.Errorf("%w: none of %s %s", ErrNone, strings.Join(seen, ", "), want)
	}
	names := make([]string, len(found))
	for i, d := range found {
		names[i] = d.Path
	}
	return nil, fmt.Errorf("%w: each of %s %s; unplug all but one", ErrMany, strings.Join(names, " and "), want)
}

// prefer leaves optical media or disks out of what was found where there are both.
func (f *Finder) prefer(found []*Disk) []*Disk {
	var first, rest []*Disk
	for _, d := range found {
		if d.Optical() == f.Optical {
			first = append(first, d)
		} else {
			rest = append(rest, d)
		}
	}
	if len(first) > 0 {
		return first
	}
	return rest
}

// DataDisk returns the disk that is there for a node's data alone: it has a data partition and none of the others. A node
// whose medium cannot be written to keeps its state on it. The disk of another installation is never one.
func (f *Finder) DataDisk() (*Disk, error) {
	disks, seen := f.List()
	var found []*Disk
	for _, d := range disks {
		if release.IsDataDisk(d.Table) && !d.Optical() {
			found = append(found, d)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("%w: none of %s is a data disk, which has the partition %s alone", ErrNone, strings.Join(seen, ", "), release.PartData)
	}
	names := make([]string, len(found))
	for i, d := range found {
		names[i] = d.Path
	}
	return nil, fmt.Errorf("%w: each of %s is a data disk; unplug all but one", ErrMany, strings.Join(names, " and "))
}

// List returns the disks that have a valid GUID partition table, and the paths of all that were looked at.
func (f *Finder) List() (disks []*Disk, seen []string) {
	entries, err := fs.ReadDir(f.Sys, "block")
	if err != nil {
		return nil, nil
	}
	for _, e := range entries {
		name := e.Name()
		if !worth(name) {
			continue
		}
		size := f.number("block/"+name+"/size") * 512 // sysfs counts in 512 bytes whatever the sector size is
		if size <= 0 {
			continue
		}
		path := f.Dev + "/" + strings.ReplaceAll(name, "!", "/")
		seen = append(seen, path)
		dev, err := f.Open(path)
		if err != nil {
			continue
		}
		sector := int(f.number("block/" + name + "/queue/logical_block_size"))
		if optical(name) {
			sector = 0 // a hybrid image's table has the sectors of a disk
		}
		t, err := release.ReadGPT(dev, size, sector)
		dev.Close()
		if err != nil {
			continue
		}
		disks = append(disks, &Disk{Name: name, Path: path, Size: size, Table: t, nodes: f.partitions(name)})
	}
	sort.Slice(disks, func(i, j int) bool { return disks[i].Name < disks[j].Name })
	return disks, seen
}

// worth leaves out what cannot be a booted disk: memory disks, loops, mapped devices, arrays, floppies.
func worth(name string) bool {
	for _, p := range []string{"loop", "ram", "zram", "dm-", "md", "fd", "nbd"} {
		if rest, ok := strings.CutPrefix(name, p); ok && (p == "dm-" || rest == "" || rest[0] >= '0' && rest[0] <= '9') {
			return false
		}
	}
	return true
}

func (f *Finder) partitions(disk string) map[int]string {
	m := map[int]string{}
	entries, err := fs.ReadDir(f.Sys, "block/"+disk)
	if err != nil {
		return m
	}
	for _, e := range entries {
		if n := f.number("block/" + disk + "/" + e.Name() + "/partition"); n > 0 {
			m[int(n)] = f.Dev + "/" + strings.ReplaceAll(e.Name(), "!", "/")
		}
	}
	return m
}

func (f *Finder) number(name string) int64 {
	b, err := fs.ReadFile(f.Sys, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Read returns one disk by its kernel name.
func (f *Finder) Read(name string) (*Disk, error) {
	disks, seen := f.List()
	for _, d := range disks {
		if d.Name == name || d.Path == f.Dev+"/"+name {
			return d, nil
		}
	}
	return nil, fmt.Errorf("%w: %s is not among %s, or has no partition table that can be read", ErrNone, name, strings.Join(seen, ", "))
}
