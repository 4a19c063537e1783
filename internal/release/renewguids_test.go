package release

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"kingpost/internal/gpt"
)

// memDisk is a disk in memory that can lose its power after some writes.
type memDisk struct {
	b    []byte
	left int // writes; negative: all
}

func (m *memDisk) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(m.b).ReadAt(p, off)
}

func (m *memDisk) WriteAt(p []byte, off int64) (int, error) {
	if m.left == 0 {
		return 0, errors.New("power cut")
	}
	m.left--
	return copy(m.b[off:], p), nil
}

func imageDisk(t *testing.T, sectorSize int) (*memDisk, Plan) {
	t.Helper()
	p, err := NewPlan(DiskSpec{Arch: "amd64", SectorSize: sectorSize, ESPSize: int64(sectorSize) << 17, RootSize: 1 << 20, DataSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	m := &memDisk{b: make([]byte, p.Size), left: -1}
	if err := gpt.Write(m, &p.Table); err != nil {
		t.Fatal(err)
	}
	return m, p
}

func TestRenewGUIDs(t *testing.T) {
	for _, sectorSize := range []int{512, 4096} {
		m, p := imageDisk(t, sectorSize)
		tab, err := ReadGPT(m, p.Size, sectorSize)
		if err != nil || !IsDefaultGUIDs(tab) {
			t.Fatalf("the image: %v, default %t", err, IsDefaultGUIDs(tab))
		}
		changed, err := RenewGUIDs(tab, rand.Reader, nil)
		if err != nil || !changed || IsDefaultGUIDs(tab) {
			t.Fatalf("changed %t, %v, still default: %t", changed, err, IsDefaultGUIDs(tab))
		}
		if err := gpt.Rewrite(m, tab, nil); err != nil {
			t.Fatal(err)
		}
		got, err := ReadGPT(m, p.Size, sectorSize)
		if err != nil || got.FromBackup {
			t.Fatalf("read back: %+v, %v", got, err)
		}
		seen := map[string]bool{got.DiskGUID.String(): true, p.DiskGUID.String(): true}
		for i, q := range got.Partitions {
			was := p.Partitions[i]
			if q.Start != was.Start || q.Size != was.Size || q.Name != was.Name || q.Type != was.Type {
				t.Errorf("%+v became %+v", was, q)
			}
			for _, g := range []string{q.GUID.String(), was.GUID.String()} {
				if seen[g] {
					t.Errorf("the GUID %s is there twice", g)
				}
				seen[g] = true
			}
		}
		before := bytes.Clone(m.b[:1<<20])
		if again, err := RenewGUIDs(got, rand.Reader, nil); again || err != nil {
			t.Errorf("a second time: changed %t, %v", again, err)
		}
		if !bytes.Equal(before, m.b[:1<<20]) {
			t.Error("a second time writes")
		}
		if sectorSize != 512 {
			continue
		}
		path := filepath.Join(t.TempDir(), "disk.img")
		if err := os.WriteFile(path, m.b, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("sgdisk", "-v", path).CombinedOutput(); err != nil || !bytes.Contains(out, []byte("No problems found")) {
			t.Errorf("sgdisk: %v\n%s", err, out)
		}
	}
}

func TestRenewGUIDsKeeps(t *testing.T) {
	_, p := imageDisk(t, 512)
	tab := p.Table
	tab.Partitions = append([]gpt.Partition(nil), p.Partitions...)
	foreign := gpt.GUID{1, 2, 3}
	tab.Partitions[3].GUID = foreign
	if _, err := RenewGUIDs(&tab, rand.Reader, func(q gpt.Partition) bool { return q.Name == PartESP }); err != nil {
		t.Fatal(err)
	}
	if tab.Partitions[0].GUID != p.Partitions[0].GUID || tab.Partitions[3].GUID != foreign || tab.Partitions[1].GUID == p.Partitions[1].GUID {
		t.Errorf("got %+v", tab.Partitions)
	}
	if _, err := RenewGUIDs(&p.Table, bytes.NewReader(nil), nil); err == nil {
		t.Error("a GUID is made of nothing")
	}
}

// A power cut after any write leaves a table that can be read, with all GUIDs of one kind; doing it again finishes it.
func TestRenewGUIDsCutAnywhere(t *testing.T) {
	for cut := 0; ; cut++ {
		m, p := imageDisk(t, 512)
		renew := func() (bool, error) {
			tab, err := ReadGPT(m, p.Size, 512)
			if err != nil {
				t.Fatalf("cut after %d writes: %v", cut, err)
			}
			if _, err := RenewGUIDs(tab, rand.Reader, nil); err != nil {
				t.Fatal(err)
			}
			return tab.FromBackup, gpt.Rewrite(m, tab, nil)
		}
		m.left = cut
		_, err := renew()
		m.left = -1
		tab, rerr := ReadGPT(m, p.Size, 512)
		if rerr != nil || len(tab.Partitions) != 4 {
			t.Fatalf("cut after %d writes: %v", cut, rerr)
		}
		renewed := 0
		for i, q := range tab.Partitions {
			if q.GUID != p.Partitions[i].GUID {
				renewed++
			}
		}
		if renewed != 0 && renewed != 4 || (tab.DiskGUID != p.DiskGUID) != (renewed == 4) {
			t.Fatalf("cut after %d writes: %d of four GUIDs are new", cut, renewed)
		}
		if err == nil {
			return
		}
		if _, err := renew(); err != nil {
			t.Fatal(err)
		}
		if tab, err := ReadGPT(m, p.Size, 512); err != nil || IsDefaultGUIDs(tab) || tab.FromBackup {
			t.Fatalf("cut after %d writes, then done again: %v", cut, err)
		}
	}
}
