package blockdev

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine is a made-up /sys and /proc, with links as the kernel has them.
type machine struct {
	t   *testing.T
	dir string
}

func newMachine(t *testing.T) *machine {
	m := &machine{t, t.TempDir()}
	m.file("sys/block/.keep", "")
	m.file("proc/self/mountinfo", "")
	os.Remove(filepath.Join(m.dir, "sys/block/.keep"))
	return m
}

func (m *machine) file(name, text string) {
	m.t.Helper()
	p := filepath.Join(m.dir, name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		m.t.Fatal(err)
	}
}

// add adds a disk below a device path; files are beside it, by their names.
func (m *machine) add(name, device string, files map[string]string) {
	m.t.Helper()
	dir := "sys/devices/" + device + "/block/" + name
	m.file(dir+"/size", "2097152\n")
	m.file(dir+"/queue/logical_block_size", "512\n")
	for f, text := range files {
		m.file(dir+"/"+f, text)
	}
	if err := os.Symlink("../devices/"+device+"/block/"+name, filepath.Join(m.dir, "sys/block", name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) inventory() Inventory {
	return Inventory{Sys: os.DirFS(filepath.Join(m.dir, "sys")), Proc: os.DirFS(filepath.Join(m.dir, "proc")), Dev: "/dev"}
}

func TestDisk(t *testing.T) {
	m := newMachine(t)
	m.add("sda", "pci0000:00/ata1/host0/target0:0:0/0:0:0:0", map[string]string{"device/vendor": "ATA     ", "device/model": "Samsung SSD 860 ",
		"device/vpd_pg80": "\x00\x80\x00\x14     S3Z1NB0K123456X", "device/wwid": "naa.5002538e40a1b2c3", "queue/rotational": "0", "sda1/partition": "1", "sda2/partition": "2"})
	m.file("sys/devices/pci0000:00/usb1/1-2/idVendor", "0951")
	m.file("sys/devices/pci0000:00/usb1/1-2/serial", "60A44C\x1b[31m413FAE")
	m.add("sdb", "pci0000:00/usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0", map[string]string{"device/vendor": "Kingston", "device/model": "DataTraveler", "removable": "1", "ro": "1",
		"device/vpd_pg80": "\x00\x80\x00\x04ABCD"})
	m.add("nvme0n1", "pci0000:00/nvme/nvme0", map[string]string{"device/model": "WD SN570", "device/serial": "21A3", "wwid": "eui.001", "queue/logical_block_size": "4096"})
	m.add("vda", "pci0000:00/virtio2", map[string]string{"device/vendor": "0x1af4"})
	m.add("mmcblk0", "platform/mmc_host/mmc0", map[string]string{"device/name": "SD32G", "device/serial": "0xdeadbeef"})
	for _, name := range []string{"loop0", "dm-0", "zram0", "sr0", "md127"} {
		m.add(name, "virtual", nil)
	}
	m.add("sdc", "pci0000:00/usb2/host7", map[string]string{"size": "0\n"})            // a reader without a card
	m.add("nvme0c0n1", "pci0000:00/nvme/nvme0/path", map[string]string{"hidden": "1"}) // one path of several to nvme0n1
	m.add("mmcblk0boot0", "platform/mmc_host/mmc0/boot", nil)
	if drives, err := m.inventory().Drives(); err != nil || len(drives) != 6 || !slices.ContainsFunc(drives, func(d Disk) bool { return d.Name == "sdc" && d.Size == 0 }) {
		t.Errorf("drives %v, %v", drives, err)
	}
	all, err := m.inventory().Disks()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Disk{}
	for _, d := range all {
		got[d.Name] = d
	}
	if len(got) != 5 {
		t.Errorf("%d disks: %v", len(got), got)
	}
	for name, want := range map[string]Disk{
		"sda":     {Model: "ATA Samsung SSD 860", Serial: "S3Z1NB0K123456X", WWN: "naa.5002538e40a1b2c3", Bus: "ata", SectorSize: 512},
		"sdb":     {Model: "Kingston DataTraveler", Serial: "60A44C[31m413FAE", Bus: "usb", SectorSize: 512, Removable: true, ReadOnly: true},
		"nvme0n1": {Model: "WD SN570", Serial: "21A3", WWN: "eui.001", Bus: "nvme", SectorSize: 4096},
		"vda":     {Bus: "virtio", SectorSize: 512},
		"mmcblk0": {Model: "SD32G", Serial: "0xdeadbeef", Bus: "mmc", SectorSize: 512},
	} {
		d := got[name]
		want.Name, want.Path, want.Size = name, "/dev/"+name, 1<<30
		want.Serials, want.Partitions = d.Serials, d.Partitions
		if d.Path != want.Path || d.Size != want.Size || d.Model != want.Model || d.Serial != want.Serial || d.WWN != want.WWN || d.Bus != want.Bus ||
			d.SectorSize != want.SectorSize || d.Removable != want.Removable || d.ReadOnly != want.ReadOnly {
			t.Errorf("%+v, want %+v", d, want)
		}
	}
	if d := got["sdb"]; !d.IsSerial("ABCD") || !d.IsSerial("60A44C[31m413FAE") || d.IsSerial("") || got["vda"].IsSerial("") {
		t.Error("serial numbers do not tell disks apart")
	}
	if d := got["sda"]; len(d.Partitions) != 2 {
		t.Errorf("partitions %v", d.Partitions)
	}
	var not *NotDiskError
	if _, err := m.inventory().Disk("sda1"); !errors.As(err, &not) || not.Whole != "/dev/sda" {
		t.Errorf("a partition: %v", err)
	}
	if _, err := m.inventory().Disk("sdz"); !errors.As(err, &not) || not.Whole != "" {
		t.Errorf("nothing: %v", err)
	}
}

func TestUses(t *testing.T) {
	disk := map[string]string{"dev": "8:0", "sda1/partition": "1", "sda1/dev": "8:1", "sda2/partition": "2", "sda2/dev": "8:2"}
	for name, c := range map[string]struct {
		edit   func(m *machine)
		want   []string
		system bool
	}{
		"free":                      {func(*machine) {}, nil, false},
		"mounted":                   {func(m *machine) { m.file("proc/self/mountinfo", `30 1 8:2 / /srv/my\040disk rw - ext4 /dev/sda2 rw`) }, []string{"/dev/sda2 is mounted on /srv/my disk (umount /srv/my disk)"}, false},
		"the whole disk is mounted": {func(m *machine) { m.file("proc/self/mountinfo", `30 1 8:0 / /mnt rw - vfat /dev/sda rw`) }, []string{"/dev/sda is mounted on /mnt"}, false},
		"the system's":              {func(m *machine) { m.file("proc/self/mountinfo", `30 1 8:2 / / rw - ext4 /dev/sda2 rw`) }, []string{"/dev/sda2 is mounted on /"}, true},
		"btrfs has a number of its own": {func(m *machine) {
			m.file("proc/self/mountinfo", `30 1 0:44 / /data rw - btrfs /dev/sda1 rw`)
			m.file("sys/fs/btrfs/1234/devices/sda2/x", "")
		}, []string{"/dev/sda1 is mounted on /data", "/dev/sda2 is part of the mounted btrfs"}, false},
		"swap":        {func(m *machine) { m.file("proc/swaps", "Filename Type\n/dev/sda2 partition 100 0 -2\n") }, []string{"/dev/sda2 is swap (swapoff /dev/sda2)"}, false},
		"behind loop": {func(m *machine) { m.add("loop3", "virtual", map[string]string{"loop/backing_file": "/dev/sda1\n"}) }, []string{"/dev/sda1 is behind the loop device /dev/loop3 (losetup -d /dev/loop3)"}, false},
		"LVM": {func(m *machine) {
			m.file("sys/block/sda/sda2/holders/dm-0/x", "")
			m.add("dm-0", "virtual", map[string]string{"dm/name": "my--vg-root", "dm/uuid": "LVM-abc", "dev": "254:0"})
		}, []string{"/dev/sda2 is held by the LVM volume my--vg-root (dm-0) (vgchange -an my-vg)"}, false},
		"the system's, through encryption and LVM": {func(m *machine) {
			m.file("sys/block/sda/sda2/holders/dm-0/x", "")
			m.add("dm-0", "virtual", map[string]string{"dm/name": "crypt", "dm/uuid": "CRYPT-LUKS2-abc", "dev": "254:0", "holders/dm-1/x": ""})
			m.add("dm-1", "virtual", map[string]string{"dm/name": "vg-root", "dm/uuid": "LVM-abc", "dev": "254:1"})
			m.file("proc/self/mountinfo", `30 1 254:1 / / rw - ext4 /dev/mapper/vg-root rw`)
		}, []string{"opened encryption crypt (dm-0) (cryptsetup close crypt)", "LVM volume vg-root (dm-1)", "mounted on /"}, true},
		"MD": {func(m *machine) {
			m.file("sys/block/sda/holders/md127/x", "")
			m.add("md127", "virtual", map[string]string{"md/level": "raid1\n", "dev": "9:127"})
		}, []string{"/dev/sda is held by the array /dev/md127 (raid1) (mdadm --stop /dev/md127)"}, false},
		"swap on a mapped device": {func(m *machine) {
			m.file("sys/block/sda/sda2/holders/dm-0/x", "")
			m.add("dm-0", "virtual", map[string]string{"dm/name": "vg-swap", "dev": "254:0"})
			m.file("proc/swaps", "Filename\n/dev/mapper/vg-swap partition 1 0\n")
		}, []string{"held by the mapped device vg-swap", "/dev/dm-0 is swap"}, false},
		"a ring of holders ends": {func(m *machine) {
			m.file("sys/block/sda/holders/dm-0/x", "")
			m.add("dm-0", "virtual", map[string]string{"dm/name": "a", "holders/dm-0/x": ""})
		}, []string{"held by the mapped device a", "/dev/dm-0 is held"}, false},
		"another disk's": {func(m *machine) {
			m.file("proc/self/mountinfo", "30 1 8:16 / / rw - ext4 /dev/sdb rw\nrubbish\n31 1 8:20 / /mnt rw shared:1 - ext4 /dev/sda20 rw\n")
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.add("sda", "pci0000:00/ata1", disk)
			c.edit(m)
			d, err := m.inventory().Disk("sda")
			if err != nil {
				t.Fatal(err)
			}
			uses, err := m.inventory().Uses(d)
			if err != nil || len(uses) != len(c.want) {
				t.Fatalf("%v, %v", uses, err)
			}
			for i, u := range uses {
				if !strings.Contains(u.String(), c.want[i]) {
					t.Errorf("%q, want %q", u, c.want[i])
				}
			}
			if got := slices.ContainsFunc(uses, func(u Use) bool { return u.System }); got != c.system {
				t.Errorf("the system's: %v", got)
			}
		})
	}
	m := newMachine(t)
	m.add("sda", "pci0000:00/ata1", disk)
	os.Remove(filepath.Join(m.dir, "proc/self/mountinfo"))
	d, _ := m.inventory().Disk("sda")
	if _, err := m.inventory().Uses(d); err == nil {
		t.Error("without mountinfo nobody can tell, and nothing said so")
	}
}

func TestFileUses(t *testing.T) {
	m := newMachine(t)
	m.add("loop1", "virtual", map[string]string{"loop/backing_file": "/srv/a.img (deleted)\n"})
	m.file("proc/swaps", "Filename\n/srv/b\\040c file 1 0\n")
	for file, want := range map[string]int{"/srv/a.img": 1, "/srv/b c": 1, "/srv/c": 0} {
		if got := m.inventory().FileUses(file); len(got) != want {
			t.Errorf("%s: %v", file, got)
		}
	}
}

func FuzzParseMounts(f *testing.F) {
	f.Add(`30 1 8:2 / /srv/my\040disk rw - ext4 /dev/sda2 rw`)
	f.Add(`\\ - \777 \4`)
	f.Fuzz(func(t *testing.T, s string) { parseMounts(s); unescape(s) })
}
