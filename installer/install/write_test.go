package install

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"kingpost/installer/flash/madeup"
	"kingpost/internal/blockdev"
	"kingpost/internal/fat32"
	"kingpost/internal/faultdisk"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

var (
	faultOrders = flag.Int("fault-orders", 2, "legal reorderings that are tried at each operation of an installation")
	faultTears  = flag.Int("fault-tears", 4, "tears that are tried of each large write of an installation")
	faultRerun  = flag.Int("fault-rerun", 60, "of how many states one is installed again, and cut again")
)

const smallESP = 36 << 20

// stick is a medium of a made-up release with a node.yaml.
type stick struct {
	*madeup.Image
	data []byte // an empty data partition, as the release has it
	zst  []byte
}

func newStick(t *testing.T, version string, esp int64) *stick {
	t.Helper()
	img, err := madeup.Make(version, esp)
	if err != nil {
		t.Fatal(err)
	}
	s := &stick{Image: img, data: make([]byte, 1<<20)}
	extMagic(s.data)
	copy(s.data[500_000:], "an empty data partition of "+version)
	if err := release.WriteNodeConfig(img.Disk, img.Disk.Size(), []byte("hostname: alpha\ninstall: { disk: { serial: S-sda } }\n"), time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	z.ResetContentSize(&b, int64(len(s.data)))
	if _, err := z.Write(s.data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	s.zst = b.Bytes()
	return s
}

// extMagic is what makes a partition look like ext4.
func extMagic(b []byte) { b[1024+0x38], b[1024+0x39] = 0x53, 0xef }

func (s *stick) medium(t *testing.T) *Medium {
	t.Helper()
	m, err := ReadMedium(s.Disk, s.Disk.Size(), "amd64", s.Root, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(s.zst)), nil })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// planFor plans as a node does, from what is on the disk.
func (s *stick) planFor(t *testing.T, d *faultdisk.Disk, cfg *mesh.InstallConfig) hostapi.Disks {
	t.Helper()
	table, err := release.ReadGPT(s.Disk, s.Disk.Size(), 0)
	if err != nil {
		t.Fatal(err)
	}
	f := Found{Survey: blockdev.Survey{Disk: blockdev.Disk{Name: "sda", Path: "/dev/sda", Size: d.Size(), SectorSize: d.SectorSize(), Serial: "S-sda", Serials: []string{"S-sda"}}}}
	f.read(t.Context(), func(string) (io.ReaderAt, io.Closer, error) { return d, io.NopCloser(nil), nil })
	l := LayoutOf("amd64", table)
	l.Data = s.medium(t).DataSize()
	p, err := Make(Machine{Disks: []Found{f}, Layout: l}, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (s *stick) input(t *testing.T, d *faultdisk.Disk, cfg *mesh.InstallConfig) (Input, error) {
	t.Helper()
	p := s.planFor(t, d, cfg)
	if p.Target == "" {
		return Input{}, errors.New(p.Reason.Text)
	}
	return Input{Medium: s.medium(t), Target: d, Partitions: p.Partitions, Random: rand.NewChaCha8([32]byte{1}), Time: time.Unix(1.7e9, 0), Workers: 1}, nil
}

func (s *stick) install(t *testing.T, d *faultdisk.Disk, cfg *mesh.InstallConfig) error {
	t.Helper()
	in, err := s.input(t, d, cfg)
	if err != nil {
		return err
	}
	_, err = Write(t.Context(), in)
	return err
}

func keep() *mesh.InstallConfig { return by(mesh.DiskSelector{Serial: "S-sda"}) }
func wipe() *mesh.InstallConfig { c := keep(); c.Wipe = true; return c }

// dirty is a disk that is full of old bytes, here and there.
func dirty(size int64, sector int) *faultdisk.Disk {
	d := faultdisk.New(size, sector)
	for off := int64(0); off < size-4096; off += 3<<20 + 4096 {
		d.WriteAt(bytes.Repeat([]byte("old!"), 1024), off)
	}
	d.WriteAt(bytes.Repeat([]byte("old!"), 1024), size-4096)
	return d
}

// previous is a disk with an installation of s whose data partition has been grown and used.
func previous(t *testing.T, s *stick, size int64) *faultdisk.Disk {
	t.Helper()
	d := dirty(size, 512)
	if err := s.install(t, d, wipe()); err != nil {
		t.Fatal(err)
	}
	table, err := release.ReadGPT(d, size, 512)
	if err != nil {
		t.Fatal(err)
	}
	p := table.Partitions[3]
	for _, off := range []int64{4096, p.Size / 2, p.Size - 4096} {
		d.WriteAt([]byte("somebody's data"), p.Start+off)
	}
	return d
}

// dataSum says what is on a disk's data partition, as its table names it; empty for none.
func dataSum(t *testing.T, d *faultdisk.Disk) string {
	t.Helper()
	table, err := release.ReadGPT(d, d.Size(), 0)
	if err != nil {
		return ""
	}
	for _, p := range table.Partitions {
		if p.Name == release.PartData {
			b := make([]byte, p.Size)
			if _, err := d.ReadAt(b, p.Start); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%d+%d %s %x", p.Start, p.Size, p.GUID, crc32.ChecksumIEEE(b))
		}
	}
	return ""
}

// outcome is what a disk starts: "old", "new" or "nothing"; anything else is a mix.
func outcome(t *testing.T, d *faultdisk.Disk, before, after *stick) (string, error) {
	b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole)
	switch {
	case errors.Is(err, release.ErrNotBootable):
		return "nothing", nil
	case err != nil:
		return "", err
	case before != nil && b.Cmdline.RootHash == before.Root:
		return "old", nil
	case b.Cmdline.RootHash != after.Root:
		return "", errors.New("it starts something else")
	}
	esp, err := release.OpenESP(fat32.ReadOnly(d), b.Table)
	if err != nil {
		return "", err
	}
	raw, err := esp.ReadFile(MarkFile, maxMark)
	if err != nil {
		return "", err
	}
	k, err := ParseMark(raw)
	if err != nil || !k.By(after.medium(t).Mark()) {
		return "", fmt.Errorf("its mark %+v: %v", k, err)
	}
	return "new", nil
}

// TestFaults cuts an installation after every write, tears each of them, reorders what was not flushed, and has the boot's
// own code say what such a disk starts: the old release, the new one or nothing. Where a data partition is kept, the table
// names it in every state and every byte of it is there. A sample is installed again, which must end in exactly the same
// disk, and is cut once more in the middle of that.
func TestFaults(t *testing.T) {
	before, after := newStick(t, "0.1.0", smallESP), newStick(t, "0.2.0", smallESP)
	diskSize := after.Disk.Size() + 9<<20
	for name, c := range map[string]struct {
		cfg   *mesh.InstallConfig
		start func(t *testing.T) (*faultdisk.Disk, *stick)
	}{
		"a dirty disk":            {keep(), func(t *testing.T) (*faultdisk.Disk, *stick) { return dirty(diskSize+512, 512), nil }},
		"an old one, wiped":       {wipe(), func(t *testing.T) (*faultdisk.Disk, *stick) { return previous(t, before, diskSize), before }},
		"an old one, data kept":   {keep(), func(t *testing.T) (*faultdisk.Disk, *stick) { return previous(t, before, diskSize), before }},
		"the only disk, and kept": {by(mesh.DiskSelector{Only: true}), func(t *testing.T) (*faultdisk.Disk, *stick) { return previous(t, before, diskSize), before }},
		"kept, on a disk that has grown": {keep(), func(t *testing.T) (*faultdisk.Disk, *stick) {
			d := faultdisk.New(diskSize+7<<20, 512)
			old := previous(t, before, diskSize)
			b := make([]byte, 1<<20)
			for off := int64(0); off < diskSize; off += int64(len(b)) {
				n, _ := old.ReadAt(b, off)
				if !bytes.Equal(b[:n], make([]byte, n)) {
					d.WriteAt(b[:n], off)
				}
			}
			return d, before
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d, old := c.start(t)
			kept := ""
			if p := after.planFor(t, d, c.cfg); p.Target == "" {
				t.Fatal(p.Reason.Text)
			} else if p.Partitions[3].Kept {
				kept = dataSum(t, d)
			}
			if (kept != "") != strings.Contains(name, "kept") {
				t.Fatalf("kept is %q", kept)
			}
			rec, err := d.Record(func() error { return after.install(t, d, c.cfg) })
			if err != nil {
				t.Fatal(err)
			}
			want := d.Sum()
			if err := freshData(t, d, after); kept == "" && err != nil {
				t.Fatal(err)
			}
			judge := func(what string, d *faultdisk.Disk) string {
				out, err := outcome(t, d, old, after)
				if err != nil {
					t.Errorf("%s: a mix: %v", what, err)
				}
				if kept != "" && dataSum(t, d) != kept {
					t.Errorf("%s: the data is %q, it was %q", what, dataSum(t, d), kept)
				}
				return out
			}
			states, metadata, again := 0, 0, 0
			seen := map[string]int{}
			err = rec.States(faultdisk.Options{Tears: *faultTears, Orders: *faultOrders, Seed: 1}, func(s faultdisk.State) error {
				states++
				if s.Metadata {
					metadata++
				}
				out := judge(s.What, s.Disk)
				seen[out]++
				if states%*faultRerun != 0 {
					return nil
				}
				rec, err := s.Disk.Record(func() error { return after.install(t, s.Disk, c.cfg) })
				if err != nil || s.Disk.Sum() != want && !(out == "new" && kept == "") {
					t.Errorf("%s, installed again: %v, the same disk: %t", s.What, err, s.Disk.Sum() == want)
					return nil
				}
				all := 0
				return rec.States(faultdisk.Options{Seed: 2}, func(second faultdisk.State) error {
					if all++; all%17 != 0 {
						return nil
					}
					again++
					judge(s.What+", then "+second.What, second.Disk)
					if all%(17*8) == 0 {
						if err := after.install(t, second.Disk, c.cfg); err != nil {
							t.Errorf("%s, then %s, installed again: %v", s.What, second.What, err)
						}
						judge(s.What+", then "+second.What+", again", second.Disk)
					}
					return nil
				})
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("fault states: %d distinct (%d of metadata), and %d of a second cut: %v", states, metadata, again, seen)
			if seen["new"] == 0 || seen["nothing"] == 0 || (old != nil) != (seen["old"] > 0) {
				t.Errorf("not every outcome was seen: %v", seen)
			}
		})
	}
}

// freshData compares the start of the data partition with the release's empty one.
func freshData(t *testing.T, d *faultdisk.Disk, s *stick) error {
	t.Helper()
	table, err := release.ReadGPT(d, d.Size(), 0)
	if err != nil {
		return err
	}
	b := make([]byte, len(s.data))
	if _, err := d.ReadAt(b, table.Partitions[3].Start); err != nil {
		return err
	}
	if !bytes.Equal(b, s.data) {
		return errors.New("the data partition is not the release's empty one")
	}
	return nil
}
