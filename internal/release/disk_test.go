package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kingpost/internal/ext4img"
	"kingpost/internal/fat32"
	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/verity"
)

var testTime = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

func espSpec() ESPSpec {
	return ESPSpec{
		Arch: "amd64", Info: mesh.ReleaseInfo{Name: "node", Version: "0.1.0"},
		Bootloader: bytes.Repeat([]byte("boot"), 5000), UKI: bytes.Repeat([]byte("uki"), 700_000), Rescue: []byte("rescue"),
		NodeConfig: []byte("hostname: alpha\n"),
	}
}

// root is a root image with its tree.
func root(t testing.TB, blocks int) (*bytes.Reader, verity.Info) {
	t.Helper()
	f := newFile(t, 0)
	for i := range blocks {
		b := make([]byte, verity.BlockSize)
		if i%3 != 0 { // with holes
			copy(b, fmt.Sprintf("block %d", i))
		}
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	info, err := verity.Append(context.Background(), f, int64(blocks)*verity.BlockSize, verity.Params{Salt: []byte("salt")})
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, info.Size)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b), info
}

// disk writes a whole disk.
func disk(t testing.TB, s DiskSpec) (*os.File, Plan, verity.Info) {
	t.Helper()
	p, err := NewPlan(s)
	if err != nil {
		t.Fatal(err)
	}
	esp, err := ESPFiles(espSpec())
	if err != nil {
		t.Fatal(err)
	}
	r, info := root(t, 2000)
	c := Contents{ESP: esp, Time: testTime, RootA: &Content{r, info.Size}}
	data := filepath.Join(t.TempDir(), "data.img")
	q, _ := p.Partition(PartData)
	o := ext4img.Options{Size: q.Size, UUID: [16]byte{1}, HashSeed: [16]byte{2}, Time: testTime}
	if err := ext4img.Make(context.Background(), data, o); err == nil {
		d, err := os.Open(data)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		c.Data = &Content{d, q.Size}
	} else {
		t.Log(err)
	}
	f := newFile(t, p.Size)
	if err := WriteDisk(context.Background(), f, p, c, nil); err != nil {
		t.Fatal(err)
	}
	return f, p, info
}

// judge runs a tool that must find no fault.
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

// extract copies a partition into a file of its own.
func extract(t *testing.T, f *os.File, p gpt.Partition) string {
	t.Helper()
	out := newFile(t, p.Size)
	if err := copySparse(context.Background(), out, 0, &Content{io.NewSectionReader(f, p.Start, p.Size), p.Size}, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	return out.Name()
}

func TestDiskIsSoundForTheTools(t *testing.T) {
	for name, s := range map[string]DiskSpec{
		"512": {Arch: "amd64", ESPSize: 64 << 20, RootSize: 32 << 20},
		"4kn": {Arch: "arm64", SectorSize: 4096, ESPSize: 300 << 20, RootSize: 32 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			f, p, info := disk(t, s)
			if p.SectorSize == 512 {
				judge(t, "No problems found", "sgdisk", "-v", f.Name())
				judge(t, "No errors detected", "sfdisk", "--verify", f.Name())
			}
			parts := map[string]string{}
			for _, q := range p.Partitions {
				parts[q.Name] = extract(t, f, q)
			}
			judge(t, "", "fsck.vfat", "-n", parts[PartESP])
			judge(t, "kingpost-data", "e2fsck", "-fn", parts[PartData])
			judge(t, "", "veritysetup", "verify", parts[PartRootA], parts[PartRootA], fmt.Sprintf("%x", info.RootHash), "--hash-offset", fmt.Sprint(info.HashOffset))
			st, err := f.Stat()
			if err != nil || st.Size() != p.Size {
				t.Fatalf("%v, %v", st, err)
			}
			if used := st.Sys().(*syscall.Stat_t).Blocks * 512; used > 24<<20 {
				t.Errorf("the image takes %d bytes of disk, it should be sparse", used)
			}
		})
	}
}

func TestDiskIsRepeatable(t *testing.T) {
	s := DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 16 << 20, DataSize: 64 << 20}
	var all [2][]byte
	for i := range all {
		f, _, _ := disk(t, s)
		var err error
		if all[i], err = os.ReadFile(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("two disks from the same contents differ")
	}
}

func TestFindRoots(t *testing.T) {
	f, p, info := disk(t, DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 16 << 20, DataSize: 64 << 20})
	table, err := ReadGPT(f, p.Size, 0)
	if err != nil {
		t.Fatal(err)
	}
	roots := FindRoots(f, table, info.RootHash[:], info.HashOffset)
	if len(roots) != 2 || roots[0].Letter != "a" || roots[0].Err != nil || roots[1].Letter != "b" || roots[1].Err == nil {
		t.Errorf("roots are %+v", roots)
	}
	other := info.RootHash
	other[0]++
	if r := FindRoots(f, table, other[:], info.HashOffset); !errors.Is(r[0].Err, verity.ErrRootHash) {
		t.Errorf("another root hash gives %v", r[0].Err)
	}
}

func TestGrowLast(t *testing.T) {
	for _, sectorSize := range []int{512, 4096} {
		t.Run(fmt.Sprint(sectorSize), func(t *testing.T) {
			esp := int64(64 << 20)
			if sectorSize == 4096 {
				esp = 300 << 20
			}
			f, p, _ := disk(t, DiskSpec{Arch: "amd64", SectorSize: sectorSize, ESPSize: esp, RootSize: 16 << 20, DataSize: 64 << 20})
			size := p.Size + 256<<20
			if err := f.Truncate(size); err != nil {
				t.Fatal(err)
			}
			syncs := 0
			table, err := GrowLast(f, size, sectorSize, func() error { syncs++; return f.Sync() })
			if err != nil || syncs != 2 {
				t.Fatalf("%d syncs, %v", syncs, err)
			}
			data, _ := find(table, PartData)
			if data.Size != 320<<20 {
				t.Errorf("the data partition has %d bytes", data.Size)
			}
			judge(t, "kingpost-data", "e2fsck", "-fn", extract(t, f, data))
			if sectorSize == 512 {
				judge(t, "No problems found", "sgdisk", "-v", f.Name())
			}
		})
	}
}

func TestNodeConfigOnTheESP(t *testing.T) {
	f, p, _ := disk(t, DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 16 << 20, DataSize: 64 << 20})
	read := func() string {
		t.Helper()
		b, err := ReadNodeConfig(f, p.Size)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := read(); got != "hostname: alpha\n" {
		t.Errorf("node.yaml is %q", got)
	}
	if err := WriteNodeConfig(f, p.Size, []byte("hostname: beta\n"), testTime); err != nil {
		t.Fatal(err)
	}
	if err := WriteNodeConfig(f, p.Size, []byte("hostnam: gamma\n"), testTime); err == nil {
		t.Error("an unknown key is accepted")
	}
	if got := read(); got != "hostname: beta\n" {
		t.Errorf("node.yaml is %q", got)
	}
	for range 2 {
		if err := WriteNodeConfig(f, p.Size, nil, testTime); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadNodeConfig(f, p.Size); !errors.Is(err, fat32.ErrNotFound) {
			t.Errorf("removed node.yaml: %v", err)
		}
	}
	esp, _ := p.Partition(PartESP)
	judge(t, "", "fsck.vfat", "-n", extract(t, f, esp))
}

func TestESPFilesBootEachOther(t *testing.T) {
	f, p, _ := disk(t, DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 16 << 20, DataSize: 64 << 20})
	esp, err := OpenESP(f, &p.Table)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := esp.List(ESPEntries)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, info := range entries {
		b, err := esp.ReadFile(ESPEntries+"/"+info.Name, MaxBootEntry)
		if err != nil {
			t.Fatal(err)
		}
		e, err := ParseBootEntry(info.Name, b)
		if err != nil {
			t.Fatal(err)
		}
		r, err := esp.OpenFile(e.EFI)
		if err != nil {
			t.Errorf("%s names a UKI that is not there: %v", info.Name, err)
			continue
		}
		want := espSpec().UKI
		if e.ID == RescueID {
			want = espSpec().Rescue
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: the UKI has %d bytes, %v", info.Name, len(got), err)
		}
		golden(t, "entry-"+info.Name, string(b))
	}
}

func TestESPFilesRefuse(t *testing.T) {
	for name, edit := range map[string]func(*ESPSpec){
		"no boot loader": func(s *ESPSpec) { s.Bootloader = nil },
		"no UKI":         func(s *ESPSpec) { s.UKI = nil },
		"no rescue":      func(s *ESPSpec) { s.Rescue = nil },
		"architecture":   func(s *ESPSpec) { s.Arch = "mips" },
		"no version":     func(s *ESPSpec) { s.Info.Version = "" },
		"version":        func(s *ESPSpec) { s.Info.Version = "1+3" },
		"called rescue":  func(s *ESPSpec) { s.Info.Version = RescueID },
		"node.yaml":      func(s *ESPSpec) { s.NodeConfig = []byte("x: y") },
	} {
		s := espSpec()
		edit(&s)
		if _, err := ESPFiles(s); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestWriteDiskRefuses(t *testing.T) {
	p, err := NewPlan(DiskSpec{Arch: "amd64", ESPSize: 64 << 20, RootSize: 1 << 20, DataSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	large := bytes.NewReader(make([]byte, 2<<20))
	for name, c := range map[string]struct {
		ctx context.Context
		c   Contents
	}{
		"root too large":  {context.Background(), Contents{RootA: &Content{large, 2 << 20}}},
		"data too large":  {context.Background(), Contents{Data: &Content{large, 2 << 20}}},
		"content too few": {context.Background(), Contents{RootA: &Content{bytes.NewReader(nil), 1 << 20}}},
		"ESP too full":    {context.Background(), Contents{ESP: []fat32.File{{Path: "x", Data: make([]byte, 70<<20)}}}},
		"cancelled":       {cancelled, Contents{}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFile(t, p.Size)
			if err := WriteDisk(c.ctx, f, p, c.c, nil); err == nil {
				t.Error("accepted")
			}
			if _, err := ReadGPT(f, p.Size, 0); !errors.Is(err, gpt.ErrNoTable) {
				t.Errorf("what was cut short has a partition table: %v", err)
			}
		})
	}
}
