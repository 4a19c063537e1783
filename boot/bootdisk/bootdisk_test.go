package bootdisk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// machine is a made-up machine: disks by name, and what /sys says of them.
type machine struct {
	sys   fstest.MapFS
	disks map[string][]byte
}

func (m *machine) finder() *Finder {
	return &Finder{Sys: m.sys, Dev: "/dev", Open: func(p string) (Device, error) {
		b, ok := m.disks[strings.TrimPrefix(p, "/dev/")]
		if !ok {
			return nil, os.ErrNotExist
		}
		return memory{bytes.NewReader(b)}, nil
	}}
}

type image []byte

func (b image) WriteAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) > int64(len(b)) {
		return 0, io.ErrShortWrite
	}
	return copy(b[off:], p), nil
}

// add gives m a disk with the named partitions; nodes says how partition n is called.
func (m *machine) add(t *testing.T, name string, guid byte, nodes string, parts ...string) {
	t.Helper()
	const size = 8 << 20
	b := make(image, size)
	tab := gpt.Table{SectorSize: 512, Size: size, DiskGUID: gpt.GUID{guid}}
	m.sys["block/"+name+"/size"] = &fstest.MapFile{Data: []byte(fmt.Sprintf("%d\n", size/512))}
	m.sys["block/"+name+"/queue/logical_block_size"] = &fstest.MapFile{Data: []byte("512\n")}
	for i, p := range parts {
		tab.Partitions = append(tab.Partitions, gpt.Partition{
			Number: i + 1, Name: p, Type: gpt.GUID{1}, GUID: gpt.GUID{guid, byte(i + 1)},
			Start: int64(i+1) << 20, Size: 1 << 20,
		})
		m.sys["block/"+name+"/"+fmt.Sprintf(nodes, i+1)+"/partition"] = &fstest.MapFile{Data: []byte(fmt.Sprintf("%d\n", i+1))}
	}
	if len(parts) > 0 {
		if err := gpt.Write(b, &tab); err != nil {
			t.Fatal(err)
		}
	}
	m.disks[name] = b
}

func newMachine() *machine { return &machine{fstest.MapFS{}, map[string][]byte{}} }

var ours = []string{release.PartESP, release.PartRootA, release.PartRootB, release.PartData}

func TestFind(t *testing.T) {
	for name, tt := range map[string]struct {
		disks func(t *testing.T, m *machine)
		esp   string
		want  string // path of the data partition's, or the last partition's, device
		err   error
		text  string
	}{
		"one disk": {func(t *testing.T, m *machine) {
			m.add(t, "vda", 1, "vda%d", ours...)
			m.add(t, "vdb", 2, "vdb%d", "something")
			m.add(t, "vdc", 3, "vdc%d")
		}, "", "/dev/vda2", nil, ""},
		"nvme": {func(t *testing.T, m *machine) { m.add(t, "nvme0n1", 1, "nvme0n1p%d", ours...) }, "", "/dev/nvme0n1p2", nil, ""},
		"two disks, none said": {func(t *testing.T, m *machine) {
			m.add(t, "sda", 1, "sda%d", ours...)
			m.add(t, "sdb", 2, "sdb%d", ours...)
		}, "", "", ErrMany, "/dev/sda and /dev/sdb"},
		"two disks, the loader said which": {func(t *testing.T, m *machine) {
			m.add(t, "sda", 1, "sda%d", ours...)
			m.add(t, "sdb", 2, "sdb%d", ours...)
		}, gpt.GUID{2, 1}.String(), "/dev/sdb2", nil, ""},
		"upper case": {func(t *testing.T, m *machine) { m.add(t, "sda", 0xab, "sda%d", ours...) },
			strings.ToUpper(gpt.GUID{0xab, 1}.String()), "/dev/sda2", nil, ""},
		"two copies of one disk": {func(t *testing.T, m *machine) {
			m.add(t, "sda", 1, "sda%d", ours...)
			m.add(t, "sdb", 1, "sdb%d", ours...)
		}, gpt.GUID{1, 1}.String(), "", ErrMany, "unplug"},
		"the loader's disk is not here": {func(t *testing.T, m *machine) { m.add(t, "sda", 1, "sda%d", ours...) },
			gpt.GUID{9, 1}.String(), "", ErrNone, "/dev/sda"},
		"no data partition": {func(t *testing.T, m *machine) { m.add(t, "vda", 1, "vda%d", ours[:3]...) }, "", "/dev/vda2", nil, ""},
		"no disk":           {func(*testing.T, *machine) {}, "", "", ErrNone, "no disk at all"},
		"not a GUID":        {func(*testing.T, *machine) {}, "xyz", "", nil, "no GUID"},
		"loops do not count": {func(t *testing.T, m *machine) {
			m.add(t, "vda", 1, "vda%d", ours...)
			m.add(t, "loop0", 1, "loop0p%d", ours...)
			m.add(t, "dm-0", 1, "dm-0p%d", ours...)
		}, "", "/dev/vda2", nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			tt.disks(t, m)
			d, err := m.finder().Find(tt.esp)
			if tt.err != nil || tt.text != "" {
				if tt.err != nil && !errors.Is(err, tt.err) || err == nil || !strings.Contains(err.Error(), tt.text) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			p, _ := d.Partition(release.PartRootA)
			if got := d.Node(p.Number); got != tt.want {
				t.Errorf("root-a is %q", got)
			}
		})
	}
}

func TestWaitFindsADiskThatComesLate(t *testing.T) {
	m := newMachine()
	f := m.finder()
	calls := 0
	open := f.Open
	f.Open = func(p string) (Device, error) {
		if calls++; calls < 4 {
			return nil, os.ErrNotExist
		}
		return open(p)
	}
	m.add(t, "sda", 1, "sda%d", ours...)
	if _, err := f.Wait(context.Background(), "", 10*time.Second, nil); err != nil {
		t.Error(err)
	}
	if _, err := newMachine().finder().Wait(context.Background(), "", 20*time.Millisecond, nil); !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
}

func TestLoaderPartition(t *testing.T) {
	text := func(s string) *fstest.MapFile {
		b := []byte{7, 0, 0, 0}
		for _, c := range s {
			b = append(b, byte(c), 0)
		}
		return &fstest.MapFile{Data: append(b, 0, 0)}
	}
	const guid = "6A4F9A3E-1D2C-4B5A-8E7F-001122334455"
	fsys := fstest.MapFS{"LoaderDevicePartUUID-" + loaderVendor: text(guid)}
	if got, err := LoaderPartition(fsys); got != guid || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if CountedTry(fsys) {
		t.Error("a try is counted without a count")
	}
	fsys["LoaderBootCountPath-"+loaderVendor] = text(`\loader\entries\0.2.0+2-1.conf`)
	if !CountedTry(fsys) {
		t.Error("a counted try is not seen")
	}
	if got, err := LoaderPartition(fstest.MapFS{}); got != "" || err != nil {
		t.Errorf("without EFI: %q, %v", got, err)
	}
	if _, err := LoaderPartition(fstest.MapFS{"LoaderDevicePartUUID-" + loaderVendor: {Data: []byte{1}}}); err == nil {
		t.Error("one byte is taken for a variable")
	}
}

func FuzzParseVariable(f *testing.F) {
	f.Add([]byte{7, 0, 0, 0, 'a', 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseVariable(b) })
}

func TestDirectReadsAnyPlace(t *testing.T) {
	p := filepath.Join(t.TempDir(), "disk")
	want := make([]byte, 1<<20+directAlign)
	for i := range want {
		want[i] = byte(i * 7 / 3)
	}
	if err := os.WriteFile(p, want, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDirect(p)
	if err != nil {
		t.Skipf("no direct reads here: %v", err)
	}
	defer d.Close()
	for _, tt := range []struct{ off, n int }{{0, 4096}, {4096, 1 << 20}, {1, 1}, {4095, 2}, {100, 700_000}, {512, 512}, {0, len(want)}, {len(want) - 3, 3}} {
		got := make([]byte, tt.n)
		n, err := d.ReadAt(got, int64(tt.off))
		if n != tt.n || err != nil || !bytes.Equal(got, want[tt.off:tt.off+tt.n]) {
			t.Errorf("read %d at %d: %d, %v", tt.n, tt.off, n, err)
		}
	}
	if _, err := d.ReadAt(make([]byte, 10), int64(len(want))); err == nil {
		t.Error("reading behind the end gives no error")
	}
	if n, err := d.ReadAt(make([]byte, 10), int64(len(want)-4)); n != 4 || err == nil {
		t.Errorf("reading over the end gives %d, %v", n, err)
	}
}
