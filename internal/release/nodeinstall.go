package release

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
)

// CheckInstall says what cannot be meant in a section install.
func CheckInstall(i *mesh.InstallConfig) error {
	for _, err := range []error{checkInstall(i), checkThen(i), checkDisk(i, checkDiskPath), checkDisk(i, checkDiskSize), checkDisk(i, checkDiskBus)} {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkInstall(i *mesh.InstallConfig) error {
	if i == nil {
		return nil
	}
	rest := i.Disk
	rest.Only = false
	switch {
	case i.Disk == (mesh.DiskSelector{}):
		return fmt.Errorf("it names no disk; set serial, wwn, path, size, model, bus or rotational below disk, or only: true for the only one there is")
	case i.Disk.Only && rest != (mesh.DiskSelector{}):
		return fmt.Errorf("disk.only goes with no other key: it means the only disk there is")
	}
	return nil
}

func checkDisk(i *mesh.InstallConfig, check func(mesh.DiskSelector) error) error {
	if i == nil {
		return nil
	}
	return check(i.Disk)
}

func checkThen(i *mesh.InstallConfig) error {
	if i == nil {
		return nil
	}
	switch i.Then {
	case "", mesh.ThenReboot, mesh.ThenPowerOff, mesh.ThenWait:
		return nil
	}
	return fmt.Errorf("%.40q is none of %s, %s and %s", i.Then, mesh.ThenReboot, mesh.ThenPowerOff, mesh.ThenWait)
}

func checkDiskPath(d mesh.DiskSelector) error {
	name, ok := strings.CutPrefix(d.Path, "/dev/")
	switch {
	case d.Path == "":
		return nil
	case !ok || name == "":
		return fmt.Errorf("%.60q is no path of a disk; the form is /dev/sda", d.Path)
	case strings.HasPrefix(name, "disk/"):
		return fmt.Errorf("a node has no links below /dev/disk; set serial or wwn, which say the same")
	}
	return nil
}

func checkDiskBus(d mesh.DiskSelector) error {
	if d.Bus != "" && !slices.Contains(blockdev.Buses(), d.Bus) {
		return fmt.Errorf("%.40q is none of %s", d.Bus, strings.Join(blockdev.Buses(), ", "))
	}
	return nil
}

func checkDiskSize(d mesh.DiskSelector) error {
	if d.Size == "" {
		return nil
	}
	_, err := ParseDiskSize(d.Size)
	return err
}

// DiskSize is a range of sizes in bytes, both ends included.
type DiskSize struct{ Min, Max int64 }

// Has reports whether n bytes are in the range.
func (s DiskSize) Has(n int64) bool { return n >= s.Min && n <= s.Max }

// sizeTolerance is how far a disk may be from a size that is given alone, in percent: what is printed on it is rounded.
const sizeTolerance = 5

// sizeUnits are the units of a size, decimal as on labels and binary.
func sizeUnits() map[string]int64 {
	return map[string]int64{"MB": 1e6, "GB": 1e9, "TB": 1e12, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
}

// ParseDiskSize reads a size ("500GB", met by disks within 5 percent of it), or borders that all hold (">= 400GB, < 1TB").
func ParseDiskSize(s string) (DiskSize, error) {
	out := DiskSize{0, math.MaxInt64}
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		number := strings.TrimLeft(part, "<>=")
		op := part[:len(part)-len(number)]
		n, err := parseSize(strings.TrimSpace(number))
		if err != nil {
			return DiskSize{}, err
		}
		low, high := int64(0), int64(math.MaxInt64)
		switch op {
		case "":
			low, high = n-n/100*sizeTolerance, n+n/100*sizeTolerance
		case ">=":
			low = n
		case ">":
			low = n + 1
		case "<=":
			high = n
		case "<":
			high = n - 1
		default:
			return DiskSize{}, fmt.Errorf("%.40q: %q is none of >=, >, <= and <", s, op)
		}
		out = DiskSize{max(out.Min, low), min(out.Max, high)}
	}
	if out.Min > out.Max {
		return DiskSize{}, fmt.Errorf("%.60q: no disk can have that size", s)
	}
	return out, nil
}

// maxDiskSize bounds a size that is given, in bytes: 1 EiB.
const maxDiskSize = 1 << 60

func parseSize(s string) (int64, error) {
	digits := strings.TrimRight(s, "BGKMTi ")
	unit, ok := sizeUnits()[strings.TrimSpace(s[len(digits):])]
	f, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || strings.ContainsAny(digits, "eExXpP_+-nN") {
		return 0, fmt.Errorf("%.40q is no size; give a number and one of MB, GB, TB, MiB, GiB, TiB, as 500GB", s)
	}
	if f *= float64(unit); f < 1 || f > maxDiskSize {
		return 0, fmt.Errorf("%.40q is out of range", s)
	}
	return int64(f), nil
}
