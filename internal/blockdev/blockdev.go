// Package blockdev says which disks a machine has, what is on one and who holds it, and opens disks and files for writing
// past the page cache.
//
// It never guesses and never writes by itself: it answers, its caller refuses. Inventory reads /sys and /proc through
// fs.FS, Look reads any io.ReaderAt, so both are tested without a disk; only Open knows the kernel. Start with Inventory.
package blockdev

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Inventory looks at the block devices of a machine.
type Inventory struct {
	Sys  fs.FS // /sys
	Proc fs.FS // /proc
	Dev  string
}

// System is this machine's.
func System() Inventory { return Inventory{os.DirFS("/sys"), os.DirFS("/proc"), "/dev"} }

// Disk is a whole disk as the kernel shows it.
type Disk struct {
	Name       string `json:"name"` // the kernel's, "sda"
	Path       string `json:"path"` // "/dev/sda"
	Size       int64  `json:"size"` // bytes
	SectorSize int    `json:"sectorSize"`
	Model      string `json:"model,omitempty"`
	// Serial is the serial number that is shown; Serials are all by which the disk calls itself: its own and, behind a USB
	// bridge, the bridge's.
	Serial     string   `json:"serial,omitempty"`
	Serials    []string `json:"-"`
	WWN        string   `json:"wwn,omitempty"`
	Bus        string   `json:"bus,omitempty"` // "usb", "ata", "nvme", "virtio", "mmc", "scsi", "virtual" or ""
	Removable  bool     `json:"removable,omitempty"`
	ReadOnly   bool     `json:"readOnly,omitempty"`
	Rotational bool     `json:"rotational,omitempty"`
	Partitions []Part   `json:"-"`
}

// Buses are the values of Disk.Bus.
func Buses() []string { return []string{"usb", "ata", "nvme", "virtio", "mmc", "scsi", "virtual"} }

// Part is a partition as the kernel shows it.
type Part struct {
	Name   string
	Number int
}

// IsSerial reports whether the disk calls itself s.
func (d Disk) IsSerial(s string) bool { return s != "" && slices.Contains(d.Serials, s) }

// Disks lists the whole disks that have a medium, in the order of their names. Memory disks, mapped devices and arrays
// are none.
func (v Inventory) Disks() ([]Disk, error) {
	all, err := v.Drives()
	return slices.DeleteFunc(all, func(d Disk) bool { return d.Size == 0 }), err
}

// Drives lists the same, and those without a medium too: their size is 0.
func (v Inventory) Drives() ([]Disk, error) {
	entries, err := fs.ReadDir(v.Sys, "block")
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var out []Disk
	for _, e := range entries {
		// Hidden are the single paths of an NVMe disk that has several; the disk itself is beside them.
		if virtual(e.Name()) || v.number("block/"+e.Name()+"/hidden") == 1 {
			continue
		}
		if d, err := v.Disk(e.Name()); err == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

// virtual tells devices that are not disks by themselves.
func virtual(name string) bool {
	for _, p := range []string{"loop", "ram", "zram", "dm-", "md", "fd", "sr", "nbd"} {
		if rest, ok := strings.CutPrefix(name, p); ok && rest != "" && rest[0] >= '0' && rest[0] <= '9' {
			return true
		}
	}
	// The boot areas and the locked memory of an eMMC look like disks beside it.
	return strings.HasPrefix(name, "mmcblk") && (strings.Contains(name, "boot") || strings.Contains(name, "rpmb"))
}

// NotDiskError says that a name is not one of a whole disk.
type NotDiskError struct{ Name, Whole string }

func (e *NotDiskError) Error() string {
	if e.Whole != "" {
		return fmt.Sprintf("%s is a partition of %s; an image is for a whole disk", e.Name, e.Whole)
	}
	return fmt.Sprintf("%s is no block device that the kernel shows in /sys/block", e.Name)
}

// Disk describes the disk with a kernel name, loops and mapped devices too. A partition's name is a *NotDiskError.
func (v Inventory) Disk(name string) (Disk, error) {
	dir := "block/" + name
	if _, err := fs.Stat(v.Sys, dir+"/size"); err != nil {
		return Disk{}, &NotDiskError{name, v.wholeOf(name)}
	}
	d := Disk{Name: name, Path: v.path(name), Size: v.number(dir+"/size") * 512, // sysfs counts in 512 bytes whatever the sector is
		SectorSize: int(v.number(dir + "/queue/logical_block_size")),
		Removable:  v.number(dir+"/removable") == 1, ReadOnly: v.number(dir+"/ro") == 1, Rotational: v.number(dir+"/queue/rotational") == 1}
	d.Model = strings.TrimSpace(v.text(dir+"/device/vendor") + " " + firstOf(v.text(dir+"/device/model"), v.text(dir+"/device/name")))
	if strings.HasPrefix(d.Model, "0x") { // virtio's vendor is a number
		d.Model = ""
	}
	device := v.devicePath(name)
	d.Bus = busOf(device)
	for _, s := range []string{v.usbSerial(device), v.vpdSerial(dir + "/device/vpd_pg80"), v.text(dir + "/serial"), v.text(dir + "/device/serial")} {
		if s != "" && !slices.Contains(d.Serials, s) {
			d.Serials = append(d.Serials, s)
		}
	}
	if len(d.Serials) > 0 {
		d.Serial = d.Serials[0]
	}
	d.WWN = firstOf(v.text(dir+"/wwid"), v.text(dir+"/device/wwid"))
	entries, err := fs.ReadDir(v.Sys, dir)
	if err != nil {
		return d, fmt.Errorf("read /sys/%s: %w", dir, err)
	}
	for _, e := range entries {
		if n := v.number(dir + "/" + e.Name() + "/partition"); n > 0 {
			d.Partitions = append(d.Partitions, Part{e.Name(), int(n)})
		}
	}
	return d, nil
}

// wholeOf is the path of the disk that has a partition of that name, "" where none has.
func (v Inventory) wholeOf(name string) string {
	entries, err := fs.ReadDir(v.Sys, "block")
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if v.number("block/"+e.Name()+"/"+name+"/partition") > 0 {
			return v.path(e.Name())
		}
	}
	return ""
}

func (v Inventory) path(name string) string { return v.Dev + "/" + strings.ReplaceAll(name, "!", "/") }

// devicePath is where in /sys a disk's device is: "devices/pci0000:00/...".
func (v Inventory) devicePath(name string) string {
	link, err := fs.ReadLink(v.Sys, "block/"+name)
	if err != nil {
		return ""
	}
	return path.Join("block", link)
}

func busOf(device string) string {
	for _, b := range []struct{ part, bus string }{{"/usb", "usb"}, {"/ata", "ata"}, {"/nvme", "nvme"}, {"/virtio", "virtio"}, {"/mmc", "mmc"}, {"/virtual/", "virtual"}, {"/host", "scsi"}} {
		if strings.Contains(device, b.part) {
			return b.bus
		}
	}
	return ""
}

// usbSerial is the serial number of the USB device that a disk hangs on.
func (v Inventory) usbSerial(device string) string {
	if !strings.Contains(device, "/usb") {
		return ""
	}
	for p := device; p != "." && p != "/"; p = path.Dir(p) {
		if v.text(p+"/idVendor") != "" {
			return v.text(p + "/serial")
		}
	}
	return ""
}

// vpdSerial reads a SCSI unit serial number page (SPC-4, section 7.8.15): four bytes, then the number.
func (v Inventory) vpdSerial(name string) string {
	b, err := fs.ReadFile(v.Sys, name)
	if err != nil || len(b) < 4 || b[1] != 0x80 {
		return ""
	}
	n := int(b[2])<<8 | int(b[3])
	return clean(string(b[4:min(4+n, len(b))]))
}

func (v Inventory) text(name string) string {
	b, err := fs.ReadFile(v.Sys, name)
	if err != nil {
		return ""
	}
	return clean(string(b))
}

// clean takes away what would break a terminal: such texts come from whoever made the device.
func clean(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f || r == '\ufffd' || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "")))
}

func (v Inventory) number(name string) int64 {
	n, err := strconv.ParseInt(v.text(name), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func firstOf(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}
