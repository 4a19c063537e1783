package blockdev

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Use is one reason why a disk must not be written to now.
type Use struct {
	Kind   UseKind `json:"kind"`
	Device string  `json:"device"` // "/dev/sda2"
	What   string  `json:"what"`   // "mounted on /home"
	Advice string  `json:"advice"` // what frees it
	// System is set where this system itself runs from it.
	System bool `json:"system,omitempty"`
}

// UseKind is a word for each way in which a disk can be in use.
type UseKind string

// Values of UseKind.
const (
	UseMounted UseKind = "mounted" // btrfs file systems of several disks too
	UseSwap    UseKind = "swap"
	UseHeld    UseKind = "held" // by LVM, MD or another mapped device
	UseLoop    UseKind = "loop" // it is behind a loop device
)

func (u Use) String() string { return fmt.Sprintf("%s is %s (%s)", u.Device, u.What, u.Advice) }

// Uses says who uses a disk or any of its partitions, directly or through what is built on it: mounts, swap, LVM, MD, other
// mapped devices, loops, btrfs. Nil means that nobody does, as far as this mount name space can tell; Open asks the kernel
// once more.
func (v Inventory) Uses(d Disk) ([]Use, error) {
	m, err := v.mounts()
	if err != nil {
		return nil, err
	}
	u := &uses{v: v, mounts: m, swaps: v.swaps(), loops: v.loops(), btrfs: v.btrfs(), seen: map[string]bool{}}
	u.walk("block/"+d.Name, 0)
	for _, p := range d.Partitions {
		u.walk("block/"+d.Name+"/"+p.Name, 0)
	}
	return u.out, nil
}

type mount struct{ dev, at, source string }

type uses struct {
	v      Inventory
	mounts []mount
	swaps  []string
	loops  map[string]string // backing file to loop
	btrfs  map[string]string // device name to file system
	seen   map[string]bool
	out    []Use
}

// maxStack bounds how many mapped devices may lie on one another.
const maxStack = 16

func (u *uses) walk(dir string, depth int) {
	if depth > maxStack || u.seen[dir] {
		return
	}
	u.seen[dir] = true
	v, name := u.v, path.Base(dir)
	names := []string{v.path(name)}
	if dm := v.text(dir + "/dm/name"); dm != "" {
		names = append(names, v.Dev+"/mapper/"+dm)
	}
	dev := v.text(dir + "/dev")
	for _, m := range u.mounts {
		if m.dev == dev && dev != "" || slices.Contains(names, m.source) {
			u.add(Use{Kind: UseMounted, Device: names[0], What: "mounted on " + m.at, Advice: "umount " + m.at, System: m.at == "/" || m.at == "/usr"})
		}
	}
	for _, s := range u.swaps {
		if slices.Contains(names, s) {
			u.add(Use{Kind: UseSwap, Device: names[0], What: "swap", Advice: "swapoff " + s})
		}
	}
	if id, ok := u.btrfs[name]; ok {
		u.add(Use{Kind: UseMounted, Device: names[0], What: "part of the mounted btrfs file system " + id, Advice: "umount it"})
	}
	for _, n := range names {
		if loop, ok := u.loops[n]; ok {
			u.add(Use{Kind: UseLoop, Device: n, What: "behind the loop device " + v.path(loop), Advice: "losetup -d " + v.path(loop)})
		}
	}
	holders, err := fs.ReadDir(v.Sys, dir+"/holders")
	if err != nil {
		return
	}
	for _, h := range holders {
		what, advice := v.holder(h.Name())
		u.add(Use{Kind: UseHeld, Device: names[0], What: "held by " + what, Advice: advice})
		u.walk("block/"+h.Name(), depth+1)
	}
}

func (u *uses) add(n Use) {
	if !slices.Contains(u.out, n) {
		u.out = append(u.out, n)
	}
}

// holder says what a device is that holds another one, and what makes it let go.
func (v Inventory) holder(name string) (what, advice string) {
	dir := "block/" + name
	switch dm := v.text(dir + "/dm/name"); {
	case dm != "" && strings.HasPrefix(v.text(dir+"/dm/uuid"), "LVM-"):
		vg := strings.ReplaceAll(strings.SplitN(strings.ReplaceAll(dm, "--", "\x00"), "-", 2)[0], "\x00", "-")
		return fmt.Sprintf("the LVM volume %s (%s)", dm, name), "vgchange -an " + vg
	case dm != "" && strings.HasPrefix(v.text(dir+"/dm/uuid"), "CRYPT-"):
		return fmt.Sprintf("the opened encryption %s (%s)", dm, name), "cryptsetup close " + dm
	case dm != "":
		return fmt.Sprintf("the mapped device %s (%s)", dm, name), "dmsetup remove " + dm
	case v.text(dir+"/md/level") != "" || strings.HasPrefix(name, "md"):
		return fmt.Sprintf("the array %s (%s)", v.path(name), firstOf(v.text(dir+"/md/level"), "inactive")), "mdadm --stop " + v.path(name)
	}
	return v.path(name), "stop it"
}

// mounts reads mountinfo (proc(5)).
func (v Inventory) mounts() ([]mount, error) {
	b, err := fs.ReadFile(v.Proc, "self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("see what is mounted: %w", err)
	}
	return parseMounts(string(b)), nil
}

func parseMounts(text string) []mount {
	var out []mount
	for line := range strings.Lines(text) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 2 {
			continue
		}
		out = append(out, mount{l[2], unescape(l[4]), unescape(r[1])})
	}
	return out
}

// unescape undoes the octal escapes of mountinfo and swaps.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			n := 0
			ok := true
			for _, c := range s[i+1 : i+4] {
				ok = ok && c >= '0' && c <= '7'
				n = n*8 + int(c-'0')
			}
			if ok && n < 256 {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (v Inventory) swaps() []string {
	b, err := fs.ReadFile(v.Proc, "swaps")
	if err != nil {
		return nil // a kernel without swap
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "/") {
			out = append(out, unescape(f[0]))
		}
	}
	return out
}

func (v Inventory) loops() map[string]string {
	out := map[string]string{}
	entries, err := fs.ReadDir(v.Sys, "block")
	if err != nil {
		return out
	}
	for _, e := range entries {
		if f := v.text("block/" + e.Name() + "/loop/backing_file"); f != "" {
			out[strings.TrimSuffix(f, " (deleted)")] = e.Name()
		}
	}
	return out
}

func (v Inventory) btrfs() map[string]string {
	out := map[string]string{}
	all, err := fs.ReadDir(v.Sys, "fs/btrfs")
	if err != nil {
		return out
	}
	for _, id := range all {
		devices, err := fs.ReadDir(v.Sys, "fs/btrfs/"+id.Name()+"/devices")
		if err != nil {
			continue
		}
		for _, d := range devices {
			out[d.Name()] = id.Name()
		}
	}
	return out
}

// FileUses says who uses a file, given by its absolute path without links: a loop device, or swap.
func (v Inventory) FileUses(file string) []Use {
	var out []Use
	if loop, ok := v.loops()[file]; ok {
		out = append(out, Use{Kind: UseLoop, Device: file, What: "behind the loop device " + v.path(loop), Advice: "losetup -d " + v.path(loop)})
	}
	if slices.Contains(v.swaps(), file) {
		out = append(out, Use{Kind: UseSwap, Device: file, What: "swap", Advice: "swapoff " + file})
	}
	return out
}
