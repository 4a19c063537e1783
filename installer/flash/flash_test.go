package flash

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/installer/diskwrite"
	"kingpost/internal/faultdisk"
	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

// export writes a disk to a file, for other people's tools.
func export(t *testing.T, d *faultdisk.Disk) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, io.NewSectionReader(d, 0, d.Size())); err != nil {
		t.Fatal(err)
	}
	return name
}

func judge(t *testing.T, good string, args ...string) {
	t.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		if path, err = exec.LookPath("/usr/sbin/" + args[0]); err != nil {
			t.Errorf("%s is not installed; make test installs it", args[0])
			return
		}
	}
	out, err := exec.Command(path, args[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), good) {
		t.Errorf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestFlash(t *testing.T) {
	small, large := makeImage(t, "0.2.0", smallESP), makeImage(t, "0.2.0", 300<<20)
	for name, c := range map[string]struct {
		image  *madeUp
		more   int64
		sector int
		clean  bool
	}{
		"clean, same size":     {small, 0, 512, true},
		"dirty, same size":     {small, 0, 512, false},
		"dirty, little larger": {small, 512 * 7, 512, false},
		"dirty, larger":        {small, 9<<20 + 512, 512, false},
		"4Kn, same size":       {large, 0, 4096, false},
		"4Kn, larger":          {large, 5 << 20, 4096, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.image
			d := faultdisk.New(m.disk.Size()+c.more, c.sector)
			if !c.clean {
				d = m.dirty(t, c.more, c.sector)
			}
			before := d.Clone()
			res, err := Run(t.Context(), m.input(t, d))
			if err != nil {
				t.Fatal(err)
			}
			if res.Verified != VerifiedMap || res.Converted != (c.sector == 4096) {
				t.Errorf("verified %q, converted %v", res.Verified, res.Converted)
			}
			b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole)
			if err != nil || b.Cmdline.RootHash != m.root || b.Table.FromBackup || b.Table.SectorSize != c.sector || b.Table.Size != d.Size() {
				t.Fatalf("starts %+v, %v", b, err)
			}
			if release.IsDefaultGUIDs(b.Table) {
				t.Error("it still has the image's GUIDs")
			}
			if cfg, err := release.ReadNodeConfig(d, d.Size()); err != nil || string(cfg) != "hostname: alpha\n" {
				t.Errorf("node.yaml is %q, %v", cfg, err)
			}
			sameAsImage(t, d, m.disk, b.Table)
			sameBehindImage(t, d, before, m.disk.Size())
			if _, err := gpt.Read(headless{d}, d.Size(), c.sector); err != nil {
				t.Errorf("the backup table: %v", err)
			}
			file := export(t, d)
			if c.sector == 512 {
				judge(t, "No problems found", "sgdisk", "-v", file)
				judge(t, "No errors detected", "sfdisk", "--verify", file)
			}
			esp := b.Table.Partitions[0]
			part := filepath.Join(t.TempDir(), "esp")
			raw := make([]byte, esp.Size)
			if _, err := d.ReadAt(raw, esp.Start); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(part, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			judge(t, "", "fsck.vfat", "-n", part)
			if got := int(binary.LittleEndian.Uint16(raw[11:])); got != c.sector {
				t.Errorf("the ESP has sectors of %d bytes", got)
			}
		})
	}
}

// headless is a disk whose head does not read.
type headless struct{ d *faultdisk.Disk }

func (h headless) ReadAt(p []byte, off int64) (int, error) {
	n, err := h.d.ReadAt(p, off)
	if off < 1<<20 {
		clear(p)
	}
	return n, err
}

// sameAsImage compares everything but ESP, head and tail with the image: holes must be zero.
func sameAsImage(t *testing.T, d, image *faultdisk.Disk, table *gpt.Table) {
	t.Helper()
	a, b := make([]byte, 1<<20), make([]byte, 1<<20)
	esp := table.Partitions[0]
	for off := int64(1 << 20); off < image.Size()-gpt.Align; off += 1 << 20 {
		if off >= esp.Start && off < esp.Start+esp.Size && table.SectorSize != 512 {
			continue
		}
		d.ReadAt(a, off)
		image.ReadAt(b, off)
		if off >= esp.Start && off < esp.Start+esp.Size {
			continue // node.yaml is in there; fsck and FindBoot judge it
		}
		if !bytes.Equal(a, b) {
			t.Errorf("the MiB at %d is not the image's", off)
		}
	}
}

// sameBehindImage checks that nothing behind the image was touched but the last 4 MiB, which hold nothing but the backup table.
func sameBehindImage(t *testing.T, d, before *faultdisk.Disk, size int64) {
	t.Helper()
	n := d.Size() - size
	if n == 0 {
		return
	}
	a, b := make([]byte, n), make([]byte, n)
	d.ReadAt(a, size)
	before.ReadAt(b, size)
	keep := max(n-diskwrite.TailSize, 0)
	if !bytes.Equal(a[:keep], b[:keep]) {
		t.Error("what lies behind the image was touched")
	}
	table := int64(33 * 512)
	if d.SectorSize() == 4096 {
		table = 5 * 4096
	}
	if end := max(n-table, keep); bytes.Contains(a[keep:end], []byte("old!")) {
		t.Error("the tail still holds old bytes")
	}
}

func TestRunRefusesBeforeTheFirstWrite(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	iso := faultdisk.New(1<<20, 512)
	iso.WriteAt([]byte("\x01CD001\x01"), isoPrimary)
	iso.WriteAt([]byte{0, 2, 0, 0}, isoPrimary+isoSpaceSize) // 1 MiB
	shortISO := iso.Clone()
	shortISO.WriteAt([]byte{1, 2, 0, 0}, isoPrimary+isoSpaceSize)
	other := faultdisk.New(8<<20, 512)
	if err := gpt.Write(other, &gpt.Table{SectorSize: 512, Size: 8 << 20, Partitions: []gpt.Partition{{Number: 1, Name: "data", Type: gpt.GUID{1}, GUID: gpt.GUID{2}, Start: 1 << 20, Size: 1 << 20}}}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		image  *faultdisk.Disk
		size   int64 // of the image; 0 is the disk's
		target int64 // 0: as the image and a GiB
		sector int
		edit   func(*Input)
		want   string
	}{
		"too small":         {image: m.disk, target: m.disk.Size() - 512, want: "use a larger one"},
		"empty":             {image: m.disk, size: -2, want: "is empty"},
		"zeros":             {image: faultdisk.New(4<<20, 512), want: "has no partition table"},
		"cut short":         {image: m.disk, size: m.disk.Size() - 4096, want: "cut short"},
		"too long":          {image: withMore(m.disk), want: "something was added"},
		"somebody else's":   {image: other, want: "no image of a Kingpost node"},
		"ISO cut short":     {image: shortISO, want: "cut short"},
		"ISO with settings": {image: iso, edit: func(in *Input) { in.Config = []byte("hostname: a") }, want: "byte for byte"},
		"4Kn, small ESP":    {image: m.disk, sector: 4096, want: "build with a larger slots.esp"},
		"crooked sectors":   {image: m.disk, sector: 2048, want: "512 and 4096"},
		"would not boot":    {image: withoutRoot(t, m), edit: func(in *Input) { in.Reader = withoutRoot(t, m) }, want: "would not boot"},
	} {
		t.Run(name, func(t *testing.T) {
			d := faultdisk.New(c.target, max(c.sector, 512))
			if c.target == 0 {
				d = faultdisk.New(c.image.Size()+1<<30, max(c.sector, 512))
			}
			d.WriteAt([]byte("old"), 0)
			before := d.Sum()
			size := c.size
			switch size {
			case 0:
				size = c.image.Size()
			case -2:
				size = 0
			}
			in := Input{Source: &pieces{r: c.image, size: size}, Size: size, Target: d, Random: bytes.NewReader(make([]byte, 1000)), Time: testTime}
			if c.edit != nil {
				c.edit(&in)
			}
			_, err := Run(t.Context(), in)
			var refused *RefusedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			if d.Sum() != before {
				t.Error("something was written")
			}
		})
	}
}

func withMore(d *faultdisk.Disk) *faultdisk.Disk {
	out := faultdisk.New(d.Size()+1<<20, 512)
	io.Copy(io.NewOffsetWriter(out, 0), io.NewSectionReader(d, 0, d.Size()))
	return out
}

func withoutRoot(t *testing.T, m *madeUp) *faultdisk.Disk {
	t.Helper()
	d := m.disk.Clone()
	table, err := release.ReadGPT(d, d.Size(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Zero(table.Partitions[1].Start, table.Partitions[1].Size); err != nil {
		t.Fatal(err)
	}
	return d
}

// What goes wrong after the first write leaves a disk that nothing starts from, says why, and running it again mends it.
func TestRunFails(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	broken := errors.New("input/output error")
	for name, c := range map[string]struct {
		edit func(*Input, *faultdisk.Disk)
		want string
	}{
		"source breaks": {func(in *Input, _ *faultdisk.Disk) {
			in.Source.(*pieces).fail = func(at int64) error {
				if at >= 5<<20 {
					return broken
				}
				return nil
			}
		}, "input/output"},
		"image ends early": {func(in *Input, _ *faultdisk.Disk) { in.Source.(*pieces).size -= 2 << 20 }, "cut short"},
		"image has more": {func(in *Input, _ *faultdisk.Disk) {
			*in.Source.(*pieces) = pieces{r: withMore(m.disk), size: m.disk.Size() + 1<<20}
		}, "has more"},
		"one bit turned": {func(in *Input, _ *faultdisk.Disk) {
			bad := m.disk.Clone()
			bad.WriteAt([]byte{0x55}, smallESP+3<<20+100)
			in.Source = &pieces{r: bad, size: bad.Size()}
		}, "fetch it again"},
		"other digest": {func(in *Input, _ *faultdisk.Disk) { in.Digest = strings.Repeat("0", 64) }, "it should have sha256:000"},
		"a bad root that nothing vouches for": {func(in *Input, _ *faultdisk.Disk) {
			bad := m.disk.Clone()
			table, _ := release.ReadGPT(bad, bad.Size(), 0)
			bad.WriteAt([]byte{0x55}, table.Partitions[1].Start+4096*5)
			in.Source, in.Map = &pieces{r: bad, size: bad.Size()}, nil
		}, "would not boot"},
		"write error": {func(_ *Input, d *faultdisk.Disk) {
			d.Fail = func(n int, op faultdisk.Op) error {
				if op.Kind == faultdisk.Write && n > 12 {
					return broken
				}
				return nil
			}
		}, "input/output"},
		"the disk vanishes at the very end": {func(_ *Input, d *faultdisk.Disk) {
			d.Fail = func(n int, op faultdisk.Op) error {
				if op.Kind == faultdisk.Write && op.Off == d.Size()-512 {
					return broken
				}
				return nil
			}
		}, "partition table"},
		"read error": {func(_ *Input, d *faultdisk.Disk) {
			d.Fail = func(n int, op faultdisk.Op) error {
				if op.Kind == faultdisk.Read && op.Off == 3<<20 {
					return broken
				}
				return nil
			}
		}, "read back"},
		"the medium forgets": {func(in *Input, d *faultdisk.Disk) { in.Target = forgetful{d, 2 << 20} }, "does not keep"},
		"zeros that are none": {func(in *Input, d *faultdisk.Disk) {
			d.WriteAt([]byte("old!"), smallESP+2<<20+70_000) // in slot B, which must be empty
			in.Target = lazy{d}
		}, "does not keep"},
		"Ctrl-C": {func(in *Input, _ *faultdisk.Disk) {
			in.Source.(*pieces).fail = func(at int64) error {
				if at >= 7<<20 {
					return context.Canceled
				}
				return nil
			}
		}, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			d := m.dirty(t, 6<<20, 512)
			old := makeImage(t, "0.1.0", smallESP)
			if _, err := Run(t.Context(), old.input(t, d)); err != nil {
				t.Fatal(err)
			}
			in := m.input(t, d)
			c.edit(&in, d)
			_, err := Run(t.Context(), in)
			var incomplete *IncompleteError
			if !errors.As(err, &incomplete) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			d.Fail = nil
			if b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole); !errors.Is(err, release.ErrNotBootable) {
				t.Errorf("it starts %+v, %v", b, err)
			}
			// Case: Ctrl-C in the payload and run again, three times, ended in "success" with the payload missing.
			if _, err := Run(t.Context(), m.input(t, d)); err != nil {
				t.Fatal(err)
			}
			if b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole); err != nil || b.Cmdline.RootHash != m.root {
				t.Errorf("after running it again it starts %+v, %v", b, err)
			}
		})
	}
}

// forgetful is a medium that keeps no more than it really has.
type forgetful struct {
	*faultdisk.Disk
	real int64
}

func (f forgetful) WriteAt(p []byte, off int64) (int, error) {
	return f.Disk.WriteAt(p, off%f.real)
}

// lazy says that it zeroes, and does nothing.
type lazy struct{ *faultdisk.Disk }

func (l lazy) Zero(off, n int64) error {
	if off == 0 || off+n == l.Size() {
		return l.Disk.Zero(off, n)
	}
	return nil
}

func TestUnverified(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	d := m.dirty(t, 0, 512)
	in := m.input(t, d)
	in.Map = nil
	res, err := Run(t.Context(), in)
	if err != nil || res.Verified != VerifiedNot {
		t.Fatalf("%+v, %v", res, err)
	}
	file := export(t, m.disk)
	judge(t, res.Digest, "sha256sum", file)
	in = m.input(t, d)
	in.Map, in.Digest = nil, res.Digest
	if res, err := Run(t.Context(), in); err != nil || res.Verified != VerifiedDigest {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestISO(t *testing.T) {
	iso := faultdisk.New(5<<20+2048, 512)
	iso.WriteAt(bytes.Repeat([]byte("hybrid"), 100), 0)
	iso.WriteAt([]byte("\x01CD001\x01"), isoPrimary)
	var blocks [4]byte
	binary.LittleEndian.PutUint32(blocks[:], uint32(iso.Size()/isoSector))
	iso.WriteAt(blocks[:], isoPrimary+isoSpaceSize)
	iso.WriteAt([]byte("the end"), iso.Size()-100)
	// Case: an ISO over an old install, whose backup table is still there, taken for installed.
	m := makeImage(t, "0.1.0", smallESP)
	d := m.dirty(t, 3<<20, 512)
	if _, err := Run(t.Context(), m.input(t, d)); err != nil {
		t.Fatal(err)
	}
	in := Input{Source: &pieces{r: iso, size: iso.Size()}, Size: -1, Target: d, Random: bytes.NewReader(nil)}
	if _, err := Run(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	a, b := make([]byte, iso.Size()), make([]byte, iso.Size())
	d.ReadAt(a, 0)
	iso.ReadAt(b, 0)
	if !bytes.Equal(a, b) {
		t.Error("the disk does not begin with the ISO's bytes")
	}
	if got, err := gpt.Read(d, d.Size(), 0); err == nil {
		t.Errorf("there is still a table: %+v", got)
	}
}

func TestCancelledBeforeTheFirstWrite(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	d := m.dirty(t, 0, 512)
	before := d.Sum()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, m.input(t, d)); !errors.Is(err, context.Canceled) || d.Sum() != before {
		t.Error(err)
	}
}

func TestCancelledWhileWriting(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	for _, phase := range []string{PhaseWrite, PhaseReadBack, PhaseCheck} {
		for _, workers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s/%d", phase, workers), func(t *testing.T) {
				d := m.dirty(t, 0, 512)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				in := m.input(t, d)
				in.Workers = workers
				in.Progress = func(p Progress) {
					if p.Phase == phase && p.Done < p.Total {
						cancel()
					}
				}
				_, err := Run(ctx, in)
				var incomplete *IncompleteError
				if !errors.Is(err, context.Canceled) || !errors.As(err, &incomplete) {
					t.Errorf("got %v", err)
				}
				if _, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole); !errors.Is(err, release.ErrNotBootable) {
					t.Error(err)
				}
			})
		}
	}
}

var _ diskwrite.Target = (*faultdisk.Disk)(nil)

func FuzzIdentify(f *testing.F) {
	m := makeImage(f, "0.2.0", smallESP)
	head := make([]byte, 64<<10)
	m.disk.ReadAt(head, 0)
	f.Add(head, m.disk.Size())
	f.Add(head, int64(-1))
	f.Add([]byte("x"), int64(0))
	f.Fuzz(func(t *testing.T, head []byte, size int64) {
		if size < -1 || len(head) > 1<<20 {
			return
		}
		if img, err := Identify(head, size); err == nil && (img.Size <= 0 || size >= 0 && img.Size != size) {
			t.Errorf("%+v of %d bytes", img, size)
		}
	})
}
