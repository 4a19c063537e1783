package initrd

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"kingpost/internal/kmod"
)

// fakeDrivers is a list of modules as the recipe for real machines has it.
func fakeDrivers(t *testing.T, bus string) (*drivers, *[]string) {
	t.Helper()
	d := &drivers{bus: bus, byName: map[string]*driver{}, seen: map[string]bool{}}
	for _, m := range []*driver{
		{name: "virtio_blk", hardware: []string{"virtio:d00000002v*"}},
		{name: "scsi_common", needed: true},
		{name: "scsi_mod", info: kmod.Modinfo{Depends: []string{"scsi_common"}}, needed: true},
		{name: "sd_mod", info: kmod.Modinfo{Depends: []string{"scsi_mod"}}, hardware: []string{"scsi:t-0x00*"}},
		{name: "libata", info: kmod.Modinfo{Depends: []string{"scsi_mod"}}, needed: true},
		{name: "ahci", info: kmod.Modinfo{Depends: []string{"libata"}}, hardware: []string{"pci:v*d*sv*sd*bc01sc06i01*"}},
		{name: "nvme", hardware: []string{"pci:v*d*sv*sd*bc01sc08i02*"}},
		{name: "dm_mod", needed: true},
		{name: "dm_verity", info: kmod.Modinfo{Depends: []string{"dm-mod"}}},
		{name: "erofs"},
		{name: "efivarfs"},
	} {
		m.file = m.name + ".ko"
		d.all = append(d.all, m)
		d.byName[m.name] = m
	}
	var loaded []string
	d.load = func(_ context.Context, file string) error {
		loaded = append(loaded, strings.TrimSuffix(file, ".ko"))
		if file == "ahci.ko" { // finds a disk
			device(t, bus, "scsi", "0:0:0:0", "scsi:t-0x00")
		}
		return nil
	}
	return d, &loaded
}

func device(t *testing.T, bus, kind, name, modalias string) {
	t.Helper()
	dir := filepath.Join(bus, kind, "devices", name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "modalias"), []byte(modalias+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyDriversOfWhatIsThereAreLoaded(t *testing.T) {
	bus := t.TempDir()
	d, loaded := fakeDrivers(t, bus)
	ctx := context.Background()
	device(t, bus, "virtio", "virtio0", "virtio:d00000002v00001AF4")
	device(t, bus, "pci", "0000:00:03.0", "pci:v00001AF4d00001042sv00001AF4sd00001100bc01sc00i00")
	for range 2 { // the second time there is nothing new
		if err := d.present(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.always(ctx, skipHere(false, "")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"virtio_blk", "dm_mod", "dm_verity", "erofs"}, *loaded); diff != "" {
		t.Error(diff)
	}
}

func TestDriversThatOthersMakeAppear(t *testing.T) {
	bus := t.TempDir()
	d, loaded := fakeDrivers(t, bus)
	device(t, bus, "pci", "0000:00:1f.2", "pci:v00008086d00002922sv00001AF4sd00001100bc01sc06i01")
	if err := d.present(context.Background()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"scsi_common", "scsi_mod", "libata", "ahci", "sd_mod"}, *loaded); diff != "" {
		t.Error(diff)
	}
}

// TestNamedDriver has one that nothing asks for, and that is of no use on most machines.
func TestNamedDriver(t *testing.T) {
	d, loaded := fakeDrivers(t, t.TempDir())
	m := &driver{name: "loop", file: "loop.ko", info: kmod.Modinfo{Depends: []string{"dm-mod"}}}
	d.all = append(d.all, m)
	d.byName["loop"] = m
	ctx := context.Background()
	if err := d.always(ctx, skipHere(false, "")); err != nil {
		t.Fatal(err)
	}
	before := len(*loaded)
	for range 2 {
		if err := d.named(ctx, "loop"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"loop"}, (*loaded)[before:]); diff != "" {
		t.Error(diff)
	}
	if err := d.named(ctx, "part-of-the-kernel"); err != nil {
		t.Error(err)
	}
}

func TestReadLists(t *testing.T) {
	fsys := fstest.MapFS{
		"load":            {Data: []byte("scsi_mod.ko\ndm-mod.ko\nahci.ko\ndm-verity.ko\n")},
		"modules.alias":   {Data: []byte("alias pci:v*d*sv*sd*bc01sc06i01* ahci\nalias devname:mapper/control dm_mod\nrubbish\n")},
		"modules.dep":     {Data: []byte("scsi_mod.ko:\ndm-mod.ko:\nahci.ko: libata.ko scsi_mod.ko\ndm-verity.ko: dm-mod.ko\n")},
		"modules.softdep": {Data: []byte("softdep ahci pre: first-one post: last\n")},
	}
	d, err := newDrivers(fsys, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ahci, verity := d.byName["ahci"], d.byName["dm_verity"]
	if diff := cmp.Diff([]string{"scsi_mod.ko", "libata.ko"}, ahci.info.Depends); diff != "" {
		t.Error(diff)
	}
	if len(ahci.hardware) != 1 || len(ahci.info.Pre) != 1 || !d.byName["scsi_mod"].needed || len(verity.hardware) != 0 || verity.needed {
		t.Errorf("ahci is %+v, dm_verity %+v", ahci, verity)
	}
	delete(fsys, "modules.dep")
	if lists, err := readLists(fsys); lists != nil || err != nil {
		t.Errorf("got %v, %v", lists, err)
	}
	if _, err := newDrivers(fstest.MapFS{}, t.TempDir()); err == nil {
		t.Error("an initrd without a list is taken")
	}
}

func TestIsHardware(t *testing.T) {
	for a, want := range map[string]bool{
		"pci:v00001AF4d*": true, "virtio:d00000002v*": true, "of:N*T*Cvirtio,mmio": true, "scsi:t-0x00*": true,
		"fs-erofs": false, "devname:mapper/control": false, "char-major-10-236": false, "block-major-8-*": false, "crypto-sha256": false,
	} {
		if isHardware(a) != want {
			t.Errorf("isHardware(%s) = %t", a, !want)
		}
	}
}

func TestSkipHere(t *testing.T) {
	const intel = "processor\t: 0\nflags\t\t: fpu sse2 sha_ni\n"
	const arm = "Features\t: fp asimd sha1 sha2\n"
	for _, tt := range []struct {
		name, cpuinfo string
		efi, want     bool
	}{
		{"efivarfs", "", false, true}, {"efivarfs", "", true, false},
		{"sha256_ssse3", intel, true, false}, {"sha256_ssse3", "flags : avx2\n", true, true},
		{"sha2_ce", arm, true, false}, {"sha2_ce", "", true, true},
		{"erofs", "", false, false},
	} {
		if got := skipHere(tt.efi, tt.cpuinfo)(tt.name); got != tt.want {
			t.Errorf("%s is skipped: %t", tt.name, got)
		}
	}
}
