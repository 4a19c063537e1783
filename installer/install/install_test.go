package install

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"kingpost/internal/blockdev"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

var update = flag.Bool("update", false, "write the golden files")

// disk is a made-up one of 100 GiB.
func disk(name string, edit ...func(*Found)) Found {
	f := Found{Survey: blockdev.Survey{Disk: blockdev.Disk{Name: name, Path: "/dev/" + name, Size: 100 << 30, SectorSize: 512, Model: "ATA Disk " + name, Bus: "ata",
		Serial: "S-" + name, Serials: []string{"S-" + name}, WWN: "naa.5000" + name}}}
	for _, e := range edit {
		e(&f)
	}
	return f
}

func sized(n int64) func(*Found)       { return func(f *Found) { f.Size = n } }
func sectors(n int) func(*Found)       { return func(f *Found) { f.SectorSize = n } }
func on(bus string) func(*Found)       { return func(f *Found) { f.Bus = bus } }
func model(s string) func(*Found)      { return func(f *Found) { f.Model = s } }
func turns(f *Found)                   { f.Rotational = true }
func readOnly(f *Found)                { f.ReadOnly = true }
func removable(f *Found)               { f.Removable = true }
func unread(f *Found)                  { f.Unread = "input/output error" }
func used(u blockdev.Use) func(*Found) { return func(f *Found) { f.Uses = append(f.Uses, u) } }
func serial(s ...string) func(*Found) {
	return func(f *Found) {
		f.Serials, f.Serial = s, ""
		if len(s) > 0 {
			f.Serial = s[0]
		}
	}
}

// noNumbers is what a virtio disk is like that nobody gave a serial number.
func noNumbers(f *Found) { f.Serials, f.Serial, f.WWN, f.Model, f.Bus = nil, "", "", "", "virtio" }

// ours puts an installation onto the disk, with that on its data partition; its own partitions take rootSize each.
func ours(rootSize int64, data ...string) func(*Found) {
	return func(f *Found) {
		sector := 512
		if f.SectorSize == 4096 {
			sector = 4096
		}
		plan, err := release.NewPlan(release.DiskSpec{Arch: "amd64", SectorSize: sector, RootSize: rootSize, Seed: f.Name})
		if err != nil {
			panic(err)
		}
		t := plan.Table
		f.Contents = blockdev.Contents{Table: &t, Signatures: []blockdev.Signature{{Type: "GPT"}}}
		for _, p := range t.Partitions {
			c := blockdev.Content{Number: p.Number, Name: p.Name, Size: p.Size}
			if p.Name == release.PartData {
				for _, s := range data {
					c.Signatures = append(c.Signatures, blockdev.Signature{Type: s})
				}
			}
			f.Contents.Partitions = append(f.Contents.Partitions, c)
		}
		f.Kingpost = &hostapi.InstalledDisk{DiskGUID: t.DiskGUID.String(), Starts: "0.1.0"}
	}
}

// windows is somebody else's system.
func windows(f *Found) {
	t := &gpt.Table{SectorSize: 512, Size: f.Size, Partitions: []gpt.Partition{{Number: 1, Name: "Basic data partition", Start: 1 << 20, Size: 1 << 30}}}
	f.Contents = blockdev.Contents{Table: t, Signatures: []blockdev.Signature{{Type: "GPT"}}, Partitions: []blockdev.Content{{Number: 1, Name: "Basic data partition", Size: 1 << 30, Signatures: []blockdev.Signature{{Type: "NTFS"}}}}}
}

// twice has two data partitions of ours.
func twice(f *Found) {
	ours(0, "ext2, ext3 or ext4")(f)
	for i := range f.Contents.Table.Partitions {
		f.Contents.Table.Partitions[i].Name = release.PartData
	}
}

func by(s mesh.DiskSelector) *mesh.InstallConfig { return &mesh.InstallConfig{Disk: s} }

func plan(t testing.TB, cfg *mesh.InstallConfig, booted string, disks ...Found) hostapi.Disks {
	t.Helper()
	d, err := Make(Machine{Disks: disks, Booted: booted, Layout: Layout{Arch: "amd64"}}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	check(t, d)
	return d
}

// check is what holds of every plan.
func check(t testing.TB, d hostapi.Disks) {
	t.Helper()
	taken := 0
	for _, x := range d.Disks {
		if x.Taken {
			taken++
			if len(x.Reasons) > 0 || !x.Possible || x.Path != d.Target {
				t.Errorf("%s is taken with reasons %v, target %s", x.Path, x.Reasons, d.Target)
			}
		} else if len(x.Reasons) == 0 {
			t.Errorf("%s is not taken, and nothing says why", x.Path)
		}
		for _, r := range x.Reasons {
			if r.Code == "" || r.Text == "" {
				t.Errorf("%s: an empty reason", x.Path)
			}
		}
	}
	if taken > 1 || (taken == 1) != (d.Target != "") || (taken == 1) == (d.Reason != nil) || (taken == 1) != (len(d.Partitions) > 0) {
		t.Errorf("%d disks are taken, the target is %q, the reason %v, with %d partitions", taken, d.Target, d.Reason, len(d.Partitions))
	}
	for i, q := range d.Partitions {
		if q.LastLBA < q.FirstLBA || i > 0 && q.FirstLBA <= d.Partitions[i-1].LastLBA {
			t.Errorf("partition %+v", q)
		}
	}
}

func codes(rs []hostapi.DiskReason) string {
	var out []string
	for _, r := range rs {
		out = append(out, r.Code)
	}
	return strings.Join(out, " ")
}

func TestMake(t *testing.T) {
	yes, no := true, false
	const ext4 = "ext2, ext3 or ext4"
	sda := mesh.DiskSelector{Serial: "S-sda"}
	for name, c := range map[string]struct {
		disks    []Found
		booted   string
		cfg      *mesh.InstallConfig
		target   string
		reasons  map[string]string // codes by disk
		warnings string
		why      string // of the plan, where there is no target
	}{
		"by serial":                {disks: []Found{disk("sda"), disk("sdb")}, cfg: by(sda), target: "/dev/sda", reasons: map[string]string{"sdb": CodeOtherSerial}},
		"sda and sdb changed":      {disks: []Found{disk("sda", serial("S-sdb")), disk("sdb", serial("S-sda"))}, cfg: by(sda), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherSerial}},
		"by the bridge's serial":   {disks: []Found{disk("sda", serial("BRIDGE", "OWN"))}, cfg: by(mesh.DiskSelector{Serial: "OWN"}), target: "/dev/sda"},
		"part of a serial":         {disks: []Found{disk("sda")}, cfg: by(mesh.DiskSelector{Serial: "S-sd"}), why: CodeNoMatch, reasons: map[string]string{"sda": CodeOtherSerial}},
		"by WWN":                   {disks: []Found{disk("sda"), disk("sdb")}, cfg: by(mesh.DiskSelector{WWN: "0x5000SDB"}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherWWN}},
		"no WWN":                   {disks: []Found{disk("vda", noNumbers)}, cfg: by(mesh.DiskSelector{WWN: "0x"}), why: CodeNoMatch, reasons: map[string]string{"vda": CodeOtherWWN}},
		"by path":                  {disks: []Found{disk("sda"), disk("sdb")}, cfg: by(mesh.DiskSelector{Path: "/dev/sdb"}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherPath}, warnings: CodeUnstablePath},
		"by size":                  {disks: []Found{disk("sda"), disk("sdb", sized(500107862016))}, cfg: by(mesh.DiskSelector{Size: "500GB"}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherSize}},
		"by model":                 {disks: []Found{disk("sda"), disk("sdb", model("ATA Samsung SSD 860"))}, cfg: by(mesh.DiskSelector{Model: "samsung ssd"}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherModel}},
		"by bus":                   {disks: []Found{disk("sda"), disk("nvme0n1", on("nvme"))}, cfg: by(mesh.DiskSelector{Bus: "nvme"}), target: "/dev/nvme0n1", reasons: map[string]string{"sda": CodeOtherBus}},
		"turning":                  {disks: []Found{disk("sda", turns), disk("sdb")}, cfg: by(mesh.DiskSelector{Rotational: &yes}), target: "/dev/sda", reasons: map[string]string{"sdb": CodeOtherRotational}},
		"not turning":              {disks: []Found{disk("sda", turns), disk("sdb")}, cfg: by(mesh.DiskSelector{Rotational: &no}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeOtherRotational}},
		"every key must match":     {disks: []Found{disk("sda")}, cfg: by(mesh.DiskSelector{Serial: "S-sda", Bus: "nvme"}), why: CodeNoMatch, reasons: map[string]string{"sda": CodeOtherBus}},
		"two of one model":         {disks: []Found{disk("sda"), disk("sdb"), disk("sdc", model("x"))}, cfg: by(mesh.DiskSelector{Model: "Disk"}), why: CodeAmbiguous, reasons: map[string]string{"sda": CodeAmbiguous, "sdb": CodeAmbiguous, "sdc": CodeOtherModel}},
		"the same serial":          {disks: []Found{disk("sda"), disk("sdb", serial("S-sda"))}, cfg: by(sda), why: CodeAmbiguous, reasons: map[string]string{"sda": CodeAmbiguous, "sdb": CodeAmbiguous}},
		"one of two is too small":  {disks: []Found{disk("sda", sized(1<<30)), disk("sdb")}, cfg: by(mesh.DiskSelector{Bus: "ata"}), why: CodeAmbiguous, reasons: map[string]string{"sda": CodeTooSmall + " " + CodeAmbiguous, "sdb": CodeAmbiguous}},
		"no serial numbers":        {disks: []Found{disk("vda", noNumbers), disk("vdb", noNumbers)}, cfg: by(sda), why: CodeNoMatch, reasons: map[string]string{"vda": CodeOtherSerial, "vdb": CodeOtherSerial}},
		"virtio, by bus and size":  {disks: []Found{disk("vda", noNumbers, sized(4<<30)), disk("vdb", noNumbers)}, booted: "/dev/vda", cfg: by(mesh.DiskSelector{Bus: "virtio", Size: ">= 50GiB"}), target: "/dev/vdb", reasons: map[string]string{"vda": CodeBooted + " " + CodeOtherSize}},
		"the booted medium":        {disks: []Found{disk("sda"), disk("sdb")}, booted: "/dev/sda", cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeBooted, "sdb": CodeOtherSerial}},
		"the booted one, told":     {disks: []Found{disk("sda")}, booted: "/dev/sda", cfg: &mesh.InstallConfig{Disk: sda, Booted: true}, target: "/dev/sda"},
		"told, but in use":         {disks: []Found{disk("sda", used(blockdev.Use{Kind: blockdev.UseMounted, Device: "/dev/sda1", What: "mounted on /boot"}))}, booted: "/dev/sda", cfg: &mesh.InstallConfig{Disk: sda, Booted: true}, why: CodeNotPossible, reasons: map[string]string{"sda": CodeMounted}},
		"the system's":             {disks: []Found{disk("sda", used(blockdev.Use{Kind: blockdev.UseMounted, System: true}))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeBooted + " " + CodeMounted}},
		"booted does not count":    {disks: []Found{disk("sda"), disk("sdb")}, booted: "/dev/sda", cfg: by(mesh.DiskSelector{Bus: "ata"}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeBooted}},
		"but with the same serial": {disks: []Found{disk("sda"), disk("sdb", serial("S-sda"))}, booted: "/dev/sda", cfg: by(sda), why: CodeAmbiguous, reasons: map[string]string{"sda": CodeBooted + " " + CodeAmbiguous, "sdb": CodeAmbiguous}},
		"swap":                     {disks: []Found{disk("sda", used(blockdev.Use{Kind: blockdev.UseSwap}))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeSwap}},
		"held":                     {disks: []Found{disk("sda", used(blockdev.Use{Kind: blockdev.UseHeld}))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeHeld}},
		"behind a loop":            {disks: []Found{disk("sda", used(blockdev.Use{Kind: blockdev.UseLoop}))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeLoop}},
		"in use some other way":    {disks: []Found{disk("sda", used(blockdev.Use{Kind: "new"}))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeHeld}},
		"read-only":                {disks: []Found{disk("sda", readOnly)}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeReadOnly}},
		"no medium":                {disks: []Found{disk("sda", sized(0))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeNoMedium}},
		"cannot be read":           {disks: []Found{disk("sda", unread)}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeUnread}},
		"too small by a sector":    {disks: []Found{disk("sda", sized(2626<<20-512))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeTooSmall}},
		"just large enough":        {disks: []Found{disk("sda", sized(2626<<20))}, cfg: by(sda), target: "/dev/sda"},
		"520-byte sectors":         {disks: []Found{disk("sda", sectors(520))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeSectorSize}},
		"no sector size":           {disks: []Found{disk("sda", sectors(0))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeSectorSize}},
		"4Kn":                      {disks: []Found{disk("sda", sectors(4096))}, cfg: by(sda), target: "/dev/sda"},
		"no section":               {disks: []Found{disk("sda")}, why: CodeNotAsked, reasons: map[string]string{"sda": CodeNotAsked}},
		"no disk at all":           {cfg: by(sda), why: CodeNoMatch},
		"only":                     {disks: []Found{disk("sda"), disk("sdb")}, booted: "/dev/sda", cfg: by(mesh.DiskSelector{Only: true}), target: "/dev/sdb", reasons: map[string]string{"sda": CodeBooted}},
		"only, of two":             {disks: []Found{disk("sda"), disk("sdb", readOnly)}, cfg: by(mesh.DiskSelector{Only: true}), why: CodeAmbiguous, reasons: map[string]string{"sda": CodeAmbiguous, "sdb": CodeReadOnly + " " + CodeAmbiguous}},
		"only, removable":          {disks: []Found{disk("sda", removable)}, cfg: by(mesh.DiskSelector{Only: true}), why: CodeNotPossible, reasons: map[string]string{"sda": CodeRemovable}},
		"only, with a system":      {disks: []Found{disk("sda", windows)}, cfg: by(mesh.DiskSelector{Only: true}), why: CodeNotPossible, reasons: map[string]string{"sda": CodeContents}},
		"only, wiped":              {disks: []Found{disk("sda", windows)}, cfg: &mesh.InstallConfig{Disk: mesh.DiskSelector{Only: true}, Wipe: true}, target: "/dev/sda", warnings: CodeLoses},
		"only, ours and more": {disks: []Found{disk("sda", ours(0, ext4), func(f *Found) {
			f.Contents.Partitions = append(f.Contents.Partitions, blockdev.Content{Number: 5, Size: 1})
		})}, cfg: by(mesh.DiskSelector{Only: true}), why: CodeNotPossible, reasons: map[string]string{"sda": CodeContents}},
		"only, ours":            {disks: []Found{disk("sda", ours(0, ext4))}, cfg: by(mesh.DiskSelector{Only: true}), target: "/dev/sda", warnings: CodeLoses},
		"a system is lost":      {disks: []Found{disk("sda", windows)}, cfg: by(sda), target: "/dev/sda", warnings: CodeLoses},
		"a damaged table":       {disks: []Found{disk("sda", func(f *Found) { f.Contents.Signatures = []blockdev.Signature{{Type: "LVM"}} })}, cfg: by(sda), target: "/dev/sda", warnings: CodeLoses},
		"data is kept":          {disks: []Found{disk("sda", ours(0, ext4))}, cfg: by(sda), target: "/dev/sda", warnings: CodeLoses},
		"data of larger slots":  {disks: []Found{disk("sda", ours(2<<30, ext4))}, cfg: by(sda), target: "/dev/sda", warnings: CodeLoses},
		"data of smaller slots": {disks: []Found{disk("sda", ours(512<<20, ext4))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeDataPlace}},
		"the same, wiped":       {disks: []Found{disk("sda", ours(512<<20, ext4))}, cfg: &mesh.InstallConfig{Disk: sda, Wipe: true}, target: "/dev/sda", warnings: CodeLoses},
		"data never made":       {disks: []Found{disk("sda", ours(512<<20))}, cfg: by(sda), target: "/dev/sda", warnings: CodeLoses},
		"data of another kind":  {disks: []Found{disk("sda", ours(0, "LUKS"))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeDataUnknown}},
		"data twice":            {disks: []Found{disk("sda", twice)}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeDataTwice}},
		"data on other sectors": {disks: []Found{disk("sda", ours(0, ext4), sectors(4096))}, cfg: by(sda), why: CodeNotPossible, reasons: map[string]string{"sda": CodeDataPlace}},
		"ours on another disk":  {disks: []Found{disk("sda"), disk("sdb", ours(0, ext4))}, cfg: by(sda), target: "/dev/sda", reasons: map[string]string{"sdb": CodeOtherSerial}, warnings: CodeOtherInstall},
		"the same, by bus":      {disks: []Found{disk("mmcblk0", on("mmc")), disk("sdb", ours(0, ext4))}, cfg: by(mesh.DiskSelector{Bus: "mmc"}), why: CodeNotPossible, reasons: map[string]string{"mmcblk0": CodeOtherInstall, "sdb": CodeOtherBus}},
		"the stick is ours":     {disks: []Found{disk("sda"), disk("sdb", ours(0, ext4))}, booted: "/dev/sdb", cfg: by(mesh.DiskSelector{Bus: "ata"}), target: "/dev/sda", reasons: map[string]string{"sdb": CodeBooted}},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan(t, c.cfg, c.booted, c.disks...)
			if d.Target != c.target {
				t.Errorf("the target is %q, wanted %q", d.Target, c.target)
			}
			if c.target == "" && d.Reason.Code != c.why {
				t.Errorf("no disk because of %s, wanted %s: %s", d.Reason.Code, c.why, d.Reason.Text)
			}
			for _, x := range d.Disks {
				if got := codes(x.Reasons); got != c.reasons[x.Name] {
					t.Errorf("%s: %q, wanted %q", x.Name, got, c.reasons[x.Name])
				}
			}
			if got := codes(d.Warnings); got != c.warnings {
				t.Errorf("warnings %q, wanted %q", got, c.warnings)
			}
		})
	}
}

func TestTexts(t *testing.T) {
	d := plan(t, by(mesh.DiskSelector{Bus: "ata"}), "", disk("sda"), disk("sdb", noNumbers, on("ata")))
	for _, want := range []string{"/dev/sda (ATA Disk sda, serial S-sda, 100.0 GiB)", "/dev/sdb (no serial number, 100.0 GiB)"} {
		if !strings.Contains(d.Reason.Text, want) {
			t.Errorf("%q does not name %s", d.Reason.Text, want)
		}
	}
	d = plan(t, by(mesh.DiskSelector{Serial: "S-sda"}), "", disk("sda", sized(2626<<20-512)))
	if !strings.Contains(d.Disks[0].Reasons[0].Text, "(512 bytes) are missing") {
		t.Error(d.Disks[0].Reasons)
	}
	if _, err := Make(Machine{}, by(mesh.DiskSelector{Size: "large"})); err == nil {
		t.Error("a size that is none")
	}
}

// Where the data partition of an earlier installation is, there it stays.
func TestKept(t *testing.T) {
	for name, root := range map[string]int64{"same slots": 1 << 30, "larger slots": 2 << 30} {
		f := disk("sda", ours(root, "ext2, ext3 or ext4"))
		old := f.Contents.Table.Partitions[3]
		d := plan(t, by(mesh.DiskSelector{Serial: "S-sda"}), "", f)
		p := d.Partitions[3]
		if !p.Kept || p.FirstLBA*512 != old.Start || p.Size != old.Size || (p.LastLBA+1)*512 != old.Start+old.Size || d.Partitions[2].Kept {
			t.Errorf("%s: %+v, it was at %d with %d bytes", name, d.Partitions, old.Start, old.Size)
		}
	}
}

func TestLayoutOf(t *testing.T) {
	f := disk("sda", ours(2<<30))
	if l := LayoutOf("amd64", f.Contents.Table); l != (Layout{Arch: "amd64", ESP: release.DefaultESPSize, Root: 2 << 30}) {
		t.Errorf("%+v", l)
	}
	windows(&f)
	for _, table := range []*gpt.Table{nil, f.Contents.Table} {
		if l := LayoutOf("arm64", table); l != (Layout{Arch: "arm64"}) {
			t.Errorf("%+v", l)
		}
	}
}

func TestGolden(t *testing.T) {
	stick := disk("sda", ours(0, "ext2, ext3 or ext4"), on("usb"), sized(16<<30), removable, model("Kingston DataTraveler"))
	for name, d := range map[string]hostapi.Disks{
		"taken": plan(t, by(mesh.DiskSelector{Serial: "S-nvme0n1"}), "/dev/sda", stick, disk("nvme0n1", on("nvme"), windows), disk("sdb", turns, sized(1<<30)),
			disk("sdc", sized(0), noNumbers, on("usb"))),
		"kept-4kn":  plan(t, by(mesh.DiskSelector{Path: "/dev/sdb"}), "/dev/sda", stick, disk("sdb", sectors(4096), ours(0, "ext2, ext3 or ext4"))),
		"ambiguous": plan(t, by(mesh.DiskSelector{Model: "disk"}), "/dev/sda", stick, disk("sdb"), disk("sdc")),
		"no-disk":   plan(t, nil, ""),
	} {
		var text bytes.Buffer
		if err := Text(&text, &d); err != nil {
			t.Fatal(err)
		}
		js, err := json.MarshalIndent(d, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		for file, got := range map[string][]byte{name + ".txt": text.Bytes(), name + ".json": append(js, '\n')} {
			file = "testdata/" + file
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(file); err != nil || !bytes.Equal(want, got) {
				t.Errorf("%s: %v\n%s", file, err, got)
			}
		}
	}
}

// Whatever disks there are in whatever order, and whatever is selected: at most one disk is taken, never one against which
// something stands, and the order in which they were found does not matter.
func FuzzMake(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 9}, "S-a", "", "", "", "", byte(0))
	f.Add([]byte{0x10, 1, 0x51, 2, 0x92, 3}, "", "naa.1", "/dev/sda", "> 1GB", "disk", byte(7))
	f.Add([]byte{0, 0}, "", "", "", "", "", byte(0x20))
	f.Fuzz(func(t *testing.T, kinds []byte, serialNo, wwn, path, diskSize, modelName string, flags byte) {
		sel := mesh.DiskSelector{Serial: serialNo, WWN: wwn, Path: path, Size: diskSize, Model: modelName, Only: flags&0x20 != 0}
		if diskSize != "" {
			if _, err := release.ParseDiskSize(diskSize); err != nil {
				sel.Size = ""
			}
		}
		edits := []func(*Found){turns, readOnly, removable, unread, windows, twice, ours(0, "ext2, ext3 or ext4"), ours(512<<20, "ext2, ext3 or ext4"),
			used(blockdev.Use{Kind: blockdev.UseHeld}), used(blockdev.Use{System: true}), noNumbers, serial("S-a"), sized(0), sectors(4096), sectors(520), sized(-1), func(*Found) {}, func(*Found) {}, func(*Found) {}}
		var disks []Found
		for i := 0; i+1 < len(kinds) && i < 40; i += 2 {
			disks = append(disks, disk("sd"+string(rune('a'+i/2)), edits[int(kinds[i])%len(edits)], edits[int(kinds[i+1])%len(edits)]))
		}
		cfg := &mesh.InstallConfig{Disk: sel, Wipe: flags&1 != 0, Booted: flags&2 != 0}
		booted := map[bool]string{true: "/dev/sda"}[flags&4 != 0]
		d := plan(t, cfg, booted, disks...)
		slices.Reverse(disks)
		again := plan(t, cfg, booted, disks...)
		a, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := json.Marshal(again); err != nil || !bytes.Equal(a, b) {
			t.Errorf("found in another order the plan is another one: %v\n%s\n%s", err, a, b)
		}
		if err := Text(&bytes.Buffer{}, &d); err != nil {
			t.Fatal(err)
		}
	})
}
