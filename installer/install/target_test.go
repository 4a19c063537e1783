package install

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kingpost/installer/flash/madeup"
	"kingpost/internal/blockdev"
	"kingpost/internal/fat32"
	"kingpost/internal/faultdisk"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// largeESP is one that sectors of 4096 bytes can have.
const largeESP = 300 << 20

// A medium with sectors of 512 bytes installs onto a disk with 4096; with too small an ESP the plan refuses it.
func Test4Kn(t *testing.T) {
	s := newStick(t, "0.2.0", largeESP)
	d := dirty(s.Disk.Size()+50<<20, 4096)
	if err := s.install(t, d, keep()); err != nil {
		t.Fatal(err)
	}
	table, err := release.ReadGPT(d, d.Size(), 4096)
	if err != nil || table.SectorSize != 4096 || table.FromBackup {
		t.Fatalf("%+v, %v", table, err)
	}
	if got, err := outcome(t, d, nil, s); got != "new" || err != nil {
		t.Errorf("it starts %s, %v", got, err)
	}
	if err := freshData(t, d, s); err != nil {
		t.Error(err)
	}
	small := newStick(t, "0.2.0", smallESP)
	if p := small.planFor(t, faultdisk.New(1<<30, 4096), keep()); p.Target != "" || codes(p.Disks[0].Reasons) != CodeSectorSize {
		t.Errorf("an ESP of 36 MiB on sectors of 4096 bytes: %+v", p)
	}
}

// What was written is a disk for other people's programs, and the medium is as it was.
func TestOthersRead(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	before := s.Disk.Sum()
	path := filepath.Join(t.TempDir(), "disk")
	f, err := blockdev.OpenFile(path, s.Disk.Size()+20<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	shape := faultdisk.New(f.Size(), 512)
	in, err := s.input(t, shape, keep())
	if err != nil {
		t.Fatal(err)
	}
	in.Target, in.Workers = f, 0
	res, err := Write(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	if s.Disk.Sum() != before {
		t.Error("the medium was written to")
	}
	for _, c := range [][]string{{"sgdisk", "-v", path}, {"fsck.vfat", "-n", esp(t, f, res.Table)}} {
		if _, err := exec.LookPath(c[0]); err != nil {
			t.Logf("%s is not installed (packages gdisk and dosfstools), so nobody else has looked", c[0])
			continue
		}
		out, err := exec.Command(c[0], c[1:]...).CombinedOutput()
		if err != nil || c[0] == "sgdisk" && !strings.Contains(string(out), "No problems found") {
			t.Errorf("%s: %v\n%s", c[0], err, out)
		}
	}
	fs, err := release.OpenESP(fat32.ReadOnly(f), res.Table)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{release.ESPNodeConfig, release.ESPLoaderConf, "EFI/BOOT/BOOTX64.EFI", release.ESPEntries + "/0.2.0.conf", release.ESPEntries + "/rescue.conf"} {
		got, err := fs.ReadFile(name, 1<<20)
		table, terr := release.ReadGPT(s.Disk, s.Disk.Size(), 0)
		if terr != nil {
			t.Fatal(terr)
		}
		from, ferr := release.OpenESP(fat32.ReadOnly(s.Disk), table)
		if ferr != nil {
			t.Fatal(ferr)
		}
		want, werr := from.ReadFile(name, 1<<20)
		if err != nil || werr != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %v, %v, the same: %t", name, err, werr, bytes.Equal(got, want))
		}
	}
}

// esp copies the ESP of a disk into a file of its own.
func esp(t *testing.T, r io.ReaderAt, table *gpt.Table) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "esp")
	out, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p := table.Partitions[0]
	if _, err := io.Copy(out, io.NewSectionReader(r, p.Start, p.Size)); err != nil {
		t.Fatal(err)
	}
	return name
}

// An error of the disk at any operation is told, and leaves no mix; the same again ends well.
func TestDiskErrors(t *testing.T) {
	before, after := newStick(t, "0.1.0", smallESP), newStick(t, "0.2.0", smallESP)
	size := after.Disk.Size() + 9<<20
	base := previous(t, before, size)
	broken := errors.New("input/output error")
	ops := 0
	count := base.Clone()
	in, err := after.input(t, count, keep())
	if err != nil {
		t.Fatal(err)
	}
	count.Fail = func(n int, _ faultdisk.Op) error { ops = n + 1; return nil }
	if _, err := Write(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	tried := 0
	for at := 0; at < ops; at += 1 + ops/150 {
		d := base.Clone()
		in, err := after.input(t, d, keep())
		if err != nil {
			t.Fatal(err)
		}
		stood := false // the backup table stands in for a primary one that cannot be read
		d.Fail = func(n int, op faultdisk.Op) error {
			if n == at {
				stood = op.Kind == faultdisk.Read && op.Off == 512
				return broken
			}
			return nil
		}
		_, err = Write(t.Context(), in)
		d.Fail = nil
		tried++
		if err == nil && !stood {
			t.Errorf("operation %d of %d failed, and nothing said so", at, ops)
		}
		if _, err := outcome(t, d, before, after); err != nil {
			t.Errorf("operation %d failed: a mix: %v", at, err)
		}
		if dataSum(t, d) != dataSum(t, base) {
			t.Errorf("operation %d failed: the data that was kept is not there", at)
		}
		if err := after.install(t, d, keep()); err != nil {
			t.Errorf("operation %d failed, installed again: %v", at, err)
		}
	}
	t.Logf("%d of %d operations failed, one in each installation", tried, ops)
}

// forgets is a disk that gives back something else than was written to one place.
type forgets struct {
	*faultdisk.Disk
	off int64
}

func (d forgets) ReadAt(p []byte, off int64) (int, error) {
	n, err := d.Disk.ReadAt(p, off)
	if at := d.off - off; at >= 0 && at < int64(n) {
		p[at] ^= 1
	}
	return n, err
}

// A disk that does not keep what it is given is found out, wherever that is, before it is one that starts.
func TestForgetfulDisk(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	shape := faultdisk.New(s.Disk.Size()+9<<20, 512)
	plan := s.planFor(t, shape, keep())
	place := func(i int, off int64) int64 { return plan.Partitions[i].FirstLBA*512 + off }
	for name, off := range map[string]int64{"root-A": place(1, 5000), "empty root-B": place(2, 700_000), "data": place(3, 500_004), "ESP": place(0, 32*512+1), "tail": shape.Size() - 2<<20} {
		d := faultdisk.New(shape.Size(), 512)
		in, err := s.input(t, d, keep())
		if err != nil {
			t.Fatal(err)
		}
		in.Target = forgets{d, off}
		if _, err := Write(t.Context(), in); err == nil {
			t.Errorf("%s: nothing said that the disk forgets", name)
		}
		if got, _ := outcome(t, d, nil, s); got != "nothing" {
			t.Errorf("%s: it starts %s", name, got)
		}
	}
}

// A medium from which nothing whole can be taken is refused, before anything is written.
func TestMediumRefused(t *testing.T) {
	open := func(b []byte) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	good := newStick(t, "0.2.0", smallESP)
	read := func(s *stick, root string, data []byte) error {
		_, err := ReadMedium(s.Disk, s.Disk.Size(), "amd64", root, open(data))
		return err
	}
	if err := read(good, good.Root, good.zst); err != nil {
		t.Fatal(err)
	}
	damaged := newStick(t, "0.2.0", smallESP)
	table, err := release.ReadGPT(damaged.Disk, damaged.Disk.Size(), 0)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := release.OpenESP(damaged.Disk, table)
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.List(release.ESPUKIs)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if err := fs.WriteFile(release.ESPUKIs+"/"+n.Name, []byte("MZ"), time.Unix(1.7e9, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"another root":     {read(good, strings.Repeat("ab", 32), good.zst), "no boot entry on it starts the release that runs"},
		"damaged programs": {read(damaged, damaged.Root, good.zst), "no boot entry"},
		"no empty data":    {read(good, good.Root, nil), "empty data partition"},
		"data of no size":  {read(good, good.Root, []byte("not zstd at all, but long enough")), "no zstd frame that says its size"},
		"no disk of ours":  {read(&stick{Image: &madeup.Image{Disk: faultdisk.New(50<<20, 512)}}, good.Root, good.zst), "no valid GUID partition table"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func FuzzParseMark(f *testing.F) {
	f.Add([]byte(`{"kind":"installation","medium":"m","config":"c","root":"r","release":"0.1.0"}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		k, err := ParseMark(b)
		if err != nil {
			return
		}
		if again, err := ParseMark(k.encode()); err != nil || again != k {
			t.Errorf("%+v, %v, from %q", again, err, b)
		}
	})
}

func TestMarkBy(t *testing.T) {
	by := Mark{Medium: "m", Root: "r", Config: "c"}
	for name, c := range map[string]struct {
		k    Mark
		want bool
	}{
		"the same medium, upgraded since": {Mark{Medium: "m", Root: "new", Config: "edited"}, true},
		"a medium like it":                {Mark{Medium: "other", Root: "r", Config: "c"}, true},
		"other settings":                  {Mark{Medium: "other", Root: "r", Config: "d"}, false},
		"another release":                 {Mark{Medium: "other", Root: "s", Config: "c"}, false},
		"a medium without a GUID":         {Mark{Root: "s", Config: "d"}, false},
	} {
		if got := c.k.By(by); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if (Mark{Root: "a"}).By(Mark{Root: "b"}) {
		t.Error("two media that nobody knows are one")
	}
}
