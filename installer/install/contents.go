package install

import (
	"fmt"
	"slices"
	"strings"

	"kingpost/internal/blockdev"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// partitions works out what disk i would have, and says what stands against it. Nil: it cannot be known.
func (p *planner) partitions(i int) []hostapi.PlannedPartition {
	d := p.out.Disks[i]
	plan, err := p.layout(d.SectorSize)
	if err != nil || d.Size < plan.Size {
		return nil // itself has said so
	}
	sector := int64(d.SectorSize)
	end := (d.Size/sector*sector - gpt.Align) / gpt.Align * gpt.Align
	parts := plan.Partitions
	data := &parts[len(parts)-1]
	data.Size = end - data.Start
	old, ok := p.oldData(i)
	if !ok {
		return nil
	}
	if old != nil {
		if old.Start < data.Start || old.Start%sector != 0 || old.Size%sector != 0 || old.Size > end+gpt.Align-old.Start {
			p.against(i, reason(CodeDataPlace, "its data partition begins at %s, the release's own partitions reach to %s, so it cannot be kept; install.wipe: true gives it up", size(old.Start), size(data.Start)))
			return nil
		}
		data.Start, data.Size = old.Start, old.Size
	}
	var out []hostapi.PlannedPartition
	for _, q := range parts {
		out = append(out, hostapi.PlannedPartition{Number: q.Number, Name: q.Name, FirstLBA: q.Start / sector, LastLBA: (q.Start+q.Size)/sector - 1, Size: q.Size,
			Kept: old != nil && q.Name == release.PartData})
	}
	return out
}

// oldData is the data partition of an earlier installation that is to be kept, nil for none. A table that is damaged or
// somebody else's has none. Not ok: there is one, and it cannot be kept.
func (p *planner) oldData(i int) (_ *gpt.Partition, ok bool) {
	t := p.m.Disks[i].Contents.Table
	if t == nil || p.cfg.Wipe {
		return nil, true
	}
	var found []gpt.Partition
	for _, q := range t.Partitions {
		if q.Name == release.PartData {
			found = append(found, q)
		}
	}
	switch len(found) {
	case 0:
		return nil, true
	case 1:
	default:
		p.against(i, reason(CodeDataTwice, "it has %d partitions %s, and which one to keep cannot be known; install.wipe: true gives all of them up", len(found), release.PartData))
		return nil, false
	}
	if t.SectorSize != p.m.Disks[i].SectorSize {
		p.against(i, reason(CodeDataPlace, "its partition table is for sectors of %d bytes, the disk has %d, so its data partition cannot be kept; install.wipe: true gives it up", t.SectorSize, p.m.Disks[i].SectorSize))
		return nil, false
	}
	var on []blockdev.Signature
	for _, c := range p.m.Disks[i].Contents.Partitions {
		if c.Number == found[0].Number {
			on = c.Signatures
		}
	}
	switch {
	case len(on) == 0: // nothing was ever put onto it
		return nil, true
	case !slices.ContainsFunc(on, func(s blockdev.Signature) bool { return strings.HasPrefix(s.Type, "ext") }):
		p.against(i, reason(CodeDataUnknown, "its data partition holds %s, which no node can use; install.wipe: true gives it up", signatures(on)))
		return nil, false
	}
	return &found[0], true
}

// cautious is what holds for a disk that nothing but its being the only one speaks for: nothing on it may be lost, and it
// must be built in.
func (p *planner) cautious(i int) {
	if !p.cfg.Disk.Only {
		return
	}
	d := p.out.Disks[i]
	if d.Removable || d.Bus == "usb" {
		p.against(i, reason(CodeRemovable, "it can be pulled out, and disk.only takes none of these; select it by serial"))
	}
	if p.cfg.Wipe {
		return
	}
	var own []string                                                      // an installation may be installed over: its data is kept, or there is none
	if data, ok := p.oldData(i); d.Kingpost != nil || ok && data != nil { // or what an interrupted one left of it
		own = []string{release.PartESP, release.PartRootA, release.PartRootB, release.PartData}
	}
	if lost := holdings(d.Contents, own...); lost != "" {
		p.against(i, reason(CodeContents, "it holds %s, which disk.only does not give up; select it by serial, or set install.wipe", lost))
	}
}

// installs looks for other installations of Kingpost. Where node.yaml says which disk is meant by a number of its own that is a
// warning. Else the installation may be meant that is on the other one.
func (p *planner) installs(target int) {
	for i := range p.out.Disks {
		d := p.out.Disks[i]
		if i == target || d.Booted || d.Kingpost == nil {
			continue
		}
		r := reason(CodeOtherInstall, "an installation of Kingpost is on %s (it starts %s); which of the two the firmware starts is up to its order", p.name(i), or(d.Kingpost.Starts, "nothing"))
		if p.identified() {
			p.out.Warnings = append(p.out.Warnings, r)
			continue
		}
		r.Text += "; select the right one by serial or wwn"
		p.against(target, r)
	}
}

// loses warns of what is on the target and will not be there any more.
func (p *planner) loses(i int, parts []hostapi.PlannedPartition) {
	d := p.out.Disks[i]
	kept := parts[len(parts)-1].Kept
	var not []string
	if kept {
		not = []string{release.PartData}
	}
	lost := holdings(d.Contents, not...)
	if lost == "" {
		return
	}
	text := fmt.Sprintf("what is on %s is lost: %s", d.Path, lost)
	if kept {
		text += "; its data partition is kept"
	}
	p.out.Warnings = append(p.out.Warnings, hostapi.DiskReason{Code: CodeLoses, Text: text})
}

// holdings names what is on a disk beside a partition table and the partitions except; empty for nothing that is known.
func holdings(c blockdev.Contents, except ...string) string {
	var words []string
	add := func(s string) {
		if s != "" && !slices.Contains(words, s) && len(words) < maxHoldings {
			words = append(words, s)
		}
	}
	for _, s := range c.Signatures {
		if !strings.HasPrefix(s.Type, "GPT") {
			add(s.String())
		}
	}
	for _, q := range c.Partitions {
		if q.Name != "" && slices.Contains(except, q.Name) {
			continue
		}
		text := fmt.Sprintf("partition %d", q.Number)
		if q.Name != "" {
			text += fmt.Sprintf(" %q", q.Name)
		}
		if len(q.Signatures) > 0 {
			text += " with " + signatures(q.Signatures)
		}
		add(text)
	}
	return strings.Join(words, ", ")
}

// maxHoldings bounds how many things one sentence names.
const maxHoldings = 12

func signatures(all []blockdev.Signature) string {
	var words []string
	for _, s := range all {
		if !slices.Contains(words, s.String()) {
			words = append(words, s.String())
		}
	}
	return strings.Join(words, ", ")
}
