// Package install installs a running node onto another disk of its machine: which disk is taken and why not the others, what
// is taken along from the medium that the node booted from, the writing, and the job that the host runs.
//
// It would rather take no disk than a wrong one, and never leaves a disk that starts and is not whole. Make, the plan, is pure,
// over a machine that is described to it; Look describes a real one; Write works on any diskwrite.Target; Job decides when.
// Only the program that brings them together knows devices. Start with Make, then Write.
package install

import (
	"fmt"
	"slices"
	"strings"

	"kingpost/internal/blockdev"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// Machine is what a plan is made from.
type Machine struct {
	Disks []Found
	// Booted is the path of the disk that the node booted from; empty for none.
	Booted string
	Layout Layout
}

// Found is a disk and what is on it.
type Found struct {
	blockdev.Survey
	Kingpost *hostapi.InstalledDisk
	Unread   string // why not all of it that counts could be read; empty: it could
}

// Layout is what the release wants of a disk.
type Layout struct {
	Arch string
	ESP  int64 // bytes; 0 is release.DefaultESPSize
	Root int64 // bytes of each slot; 0 is release.DefaultRootSize
	Data int64 // bytes of an empty data partition; 0 is release.DefaultDataSize
}

// LayoutOf is the layout of a disk of ours, which is what a node installs from itself.
func LayoutOf(arch string, t *gpt.Table) Layout {
	l := Layout{Arch: arch}
	if t == nil || !release.IsKingpost(t) {
		return l
	}
	for _, p := range t.Partitions {
		switch p.Name {
		case release.PartESP:
			l.ESP = p.Size
		case release.PartRootA:
			l.Root = p.Size
		}
	}
	return l
}

// Codes of reasons. The first group is about a disk itself, the second about what node.yaml selects, the third about what
// is on a disk that is selected; then what a plan as a whole has.
const (
	CodeBooted     = "booted"
	CodeNoMedium   = "no-medium"
	CodeReadOnly   = "read-only"
	CodeMounted    = "mounted"
	CodeSwap       = "swap"
	CodeHeld       = "held"
	CodeLoop       = "loop"
	CodeUnread     = "unread"
	CodeSectorSize = "sector-size"
	CodeTooSmall   = "too-small"

	CodeNotAsked        = "not-asked"
	CodeOtherSerial     = "other-serial"
	CodeOtherWWN        = "other-wwn"
	CodeOtherPath       = "other-path"
	CodeOtherSize       = "other-size"
	CodeOtherModel      = "other-model"
	CodeOtherBus        = "other-bus"
	CodeOtherRotational = "other-rotational"
	CodeAmbiguous       = "ambiguous"

	CodeDataPlace    = "data-place"
	CodeDataUnknown  = "data-unknown"
	CodeDataTwice    = "data-twice"
	CodeRemovable    = "removable"
	CodeContents     = "contents"
	CodeOtherInstall = "other-install"

	CodeNoMatch      = "no-match"
	CodeNotPossible  = "not-possible"
	CodeUnstablePath = "unstable-path"
	CodeLoses        = "loses"
)

func reason(code, format string, args ...any) hostapi.DiskReason {
	return hostapi.DiskReason{Code: code, Text: fmt.Sprintf(format, args...)}
}

// planner is one Make.
type planner struct {
	m       Machine
	cfg     *mesh.InstallConfig
	size    release.DiskSize
	out     hostapi.Disks
	matches []int // disks that the selectors select
}

// Make makes the plan. cfg is the section install of node.yaml, nil for none.
func Make(m Machine, cfg *mesh.InstallConfig) (hostapi.Disks, error) {
	p := &planner{m: m, cfg: cfg, out: hostapi.Disks{Install: cfg, Disks: []hostapi.NodeDisk{}}}
	if cfg != nil && cfg.Disk.Size != "" {
		var err error
		if p.size, err = release.ParseDiskSize(cfg.Disk.Size); err != nil {
			return hostapi.Disks{}, fmt.Errorf("install.disk.size: %w", err)
		}
	}
	p.m.Disks = slices.Clone(m.Disks)
	slices.SortStableFunc(p.m.Disks, func(a, b Found) int {
		if n := len(a.Name) - len(b.Name); n != 0 {
			return n // sdaa comes after sdb
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, f := range p.m.Disks {
		d := hostapi.NodeDisk{Survey: f.Survey, Kingpost: f.Kingpost, Booted: booted(m, f), Reasons: p.itself(f)}
		d.Possible = len(d.Reasons) == 0
		p.out.Disks = append(p.out.Disks, d)
	}
	p.choose()
	return p.out, nil
}

func booted(m Machine, f Found) bool {
	return m.Booted != "" && f.Path == m.Booted || slices.ContainsFunc(f.Uses, func(u blockdev.Use) bool { return u.System })
}

// itself says what stands against a disk whatever node.yaml selects.
func (p *planner) itself(f Found) []hostapi.DiskReason {
	out := []hostapi.DiskReason{}
	add := func(code, format string, args ...any) { out = append(out, reason(code, format, args...)) }
	if booted(p.m, f) && (p.cfg == nil || !p.cfg.Booted) {
		add(CodeBooted, "the node booted from it")
	}
	if f.Size <= 0 {
		add(CodeNoMedium, "there is no medium in it")
		return out
	}
	if f.ReadOnly {
		add(CodeReadOnly, "it is read-only; is there a switch on it?")
	}
	codes := map[blockdev.UseKind]string{blockdev.UseMounted: CodeMounted, blockdev.UseSwap: CodeSwap, blockdev.UseLoop: CodeLoop}
	for _, u := range f.Uses {
		code := codes[u.Kind]
		if code == "" {
			code = CodeHeld
		}
		if u.System { // what frees it would end the system
			add(code, "%s is %s", u.Device, u.What)
		} else {
			add(code, "%s", u)
		}
	}
	if f.Unread != "" {
		add(CodeUnread, "what is on it cannot be known: %s", f.Unread)
	}
	need, err := p.layout(f.SectorSize)
	if err != nil {
		add(CodeSectorSize, "it has sectors of %d bytes: %v", f.SectorSize, err)
	} else if usable := f.Size / int64(f.SectorSize) * int64(f.SectorSize); usable < need.Size {
		add(CodeTooSmall, "it has %s, the release needs %s: %s (%d bytes) are missing", size(f.Size), size(need.Size), size(need.Size-usable), need.Size-usable)
	}
	return out
}

// layout is the smallest disk with sectors of sectorSize bytes.
func (p *planner) layout(sectorSize int) (release.Plan, error) {
	if sectorSize == 0 {
		return release.Plan{}, fmt.Errorf("512 and 4096 are supported")
	}
	return release.NewPlan(release.DiskSpec{Arch: p.m.Layout.Arch, SectorSize: sectorSize, ESPSize: p.m.Layout.ESP, RootSize: p.m.Layout.Root, DataSize: p.m.Layout.Data})
}

// against adds a reason why disk i is not taken.
func (p *planner) against(i int, r hostapi.DiskReason) {
	p.out.Disks[i].Reasons = append(p.out.Disks[i].Reasons, r)
}

func (p *planner) none(r hostapi.DiskReason) { p.out.Reason = &r }

// choose takes a disk, or says why none.
func (p *planner) choose() {
	if p.cfg == nil {
		for i := range p.out.Disks {
			p.against(i, reason(CodeNotAsked, "node.yaml has no section install"))
		}
		p.none(reason(CodeNotAsked, "node.yaml has no section install, so nothing is installed"))
		return
	}
	p.warnPath()
	p.match()
	switch len(p.matches) {
	case 0:
		p.none(reason(CodeNoMatch, "no disk is the one that node.yaml selects"))
		return
	case 1:
	default:
		var names []string
		for _, i := range p.matches {
			names = append(names, p.name(i))
		}
		text := strings.Join(names, " and ")
		for _, i := range p.matches {
			p.against(i, reason(CodeAmbiguous, "node.yaml selects more than one disk: %s", text))
		}
		p.none(reason(CodeAmbiguous, "node.yaml selects more than one disk: %s; say more of the right one, or unplug the other", text))
		return
	}
	i := p.matches[0]
	parts := p.partitions(i)
	p.cautious(i)
	p.installs(i)
	if len(p.out.Disks[i].Reasons) > 0 {
		p.none(reason(CodeNotPossible, "node.yaml selects %s, which cannot be taken: %s", p.name(i), p.out.Disks[i].Reasons[0].Text))
		return
	}
	p.loses(i, parts)
	p.out.Disks[i].Taken, p.out.Target, p.out.Partitions = true, p.out.Disks[i].Path, parts
}

// name is a disk for people: "/dev/sda (Samsung SSD 860, serial S3Z, 465.8 GiB)".
func (p *planner) name(i int) string {
	d := p.out.Disks[i]
	words := []string{}
	if d.Model != "" {
		words = append(words, d.Model)
	}
	if d.Serial != "" {
		words = append(words, "serial "+d.Serial)
	} else {
		words = append(words, "no serial number")
	}
	return fmt.Sprintf("%s (%s)", d.Path, strings.Join(append(words, size(d.Size)), ", "))
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<40:
		return fmt.Sprintf("%.1f TiB", float64(n)/(1<<40))
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
