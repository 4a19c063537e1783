package install

import (
	"strings"

	"kingpost/internal/mesh/hostapi"
)

// match finds the disks that node.yaml selects. Whatever else stands against one, it counts: where of two disks that answer
// the other one is held or too small, this one would be a guess. Only the booted medium does not, as long as it was not
// selected by a number that should be its own alone.
func (p *planner) match() {
	d := p.cfg.Disk
	var also []int // the booted medium, where it answers
	for i := range p.out.Disks {
		differ := p.differs(i)
		for _, r := range differ {
			p.against(i, r)
		}
		switch {
		case len(differ) > 0:
		case p.out.Disks[i].Booted && !p.cfg.Booted:
			also = append(also, i)
		default:
			p.matches = append(p.matches, i)
		}
	}
	if len(p.matches) == 0 || d.Serial != "" || d.WWN != "" {
		p.matches = append(p.matches, also...)
	}
}

// differs says in what a disk is not the one that node.yaml selects.
func (p *planner) differs(i int) []hostapi.DiskReason {
	d, want := p.out.Disks[i], p.cfg.Disk
	var out []hostapi.DiskReason
	add := func(code, format string, args ...any) { out = append(out, reason(code, format, args...)) }
	if want.Serial != "" && !d.IsSerial(want.Serial) {
		if len(d.Serials) == 0 {
			add(CodeOtherSerial, "it has no serial number, wanted is %s", want.Serial)
		} else {
			add(CodeOtherSerial, "its serial number is %s, wanted is %s", strings.Join(d.Serials, " and "), want.Serial)
		}
	}
	if want.WWN != "" && (d.WWN == "" || plainWWN(d.WWN) != plainWWN(want.WWN)) {
		add(CodeOtherWWN, "its WWN is %s, wanted is %s", or(d.WWN, "not known"), want.WWN)
	}
	if want.Path != "" && d.Path != want.Path {
		add(CodeOtherPath, "it is not %s", want.Path)
	}
	if want.Size != "" && !p.size.Has(d.Size) {
		add(CodeOtherSize, "it has %s (%d bytes), wanted is %s", size(d.Size), d.Size, want.Size)
	}
	if want.Model != "" && !strings.Contains(strings.ToLower(d.Model), strings.ToLower(want.Model)) {
		add(CodeOtherModel, "its model is %s, wanted is %s", or(d.Model, "not known"), want.Model)
	}
	if want.Bus != "" && d.Bus != want.Bus {
		add(CodeOtherBus, "its bus is %s, wanted is %s", or(d.Bus, "not known"), want.Bus)
	}
	if want.Rotational != nil && d.Rotational != *want.Rotational {
		add(CodeOtherRotational, "%s", map[bool]string{true: "it turns, wanted is one that does not", false: "it does not turn, wanted is one that does"}[d.Rotational])
	}
	return out
}

// plainWWN takes away what the kernel, udev and labels put before the number.
func plainWWN(s string) string {
	s = strings.ToLower(strings.TrimSpace(s))
	for _, prefix := range []string{"naa.", "eui.", "wwn-", "0x"} {
		s = strings.TrimPrefix(s, prefix)
	}
	return s
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// warnPath says what is wrong with selecting by the kernel's name.
func (p *planner) warnPath() {
	if p.cfg.Disk.Path != "" {
		p.out.Warnings = append(p.out.Warnings, reason(CodeUnstablePath,
			"install.disk.path: %s can be another disk at the next boot, since the kernel names them in the order in which it finds them; select by serial or wwn", p.cfg.Disk.Path))
	}
}

// identified reports whether node.yaml selects by something that belongs to one disk, whichever other ones there are.
func (p *planner) identified() bool { return p.cfg.Disk.Serial != "" || p.cfg.Disk.WWN != "" }
