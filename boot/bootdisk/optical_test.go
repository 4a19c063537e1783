package bootdisk

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"kingpost/internal/gpt"
	"kingpost/internal/release"
)

var medium = []string{release.PartESP, release.PartRootA, release.PartData}

// cd adds an optical medium: its sectors have 2048 bytes, and the kernel shows no partitions of it.
func (m *machine) cd(t *testing.T, name string, guid byte) {
	t.Helper()
	m.add(t, name, guid, name+"p%d", medium...)
	m.sys["block/"+name+"/queue/logical_block_size"] = &fstest.MapFile{Data: []byte("2048\n")}
	for f := range m.sys {
		if strings.HasPrefix(f, "block/"+name+"/"+name) {
			delete(m.sys, f)
		}
	}
}

func TestOptical(t *testing.T) {
	for name, tt := range map[string]struct {
		disks   func(m *machine)
		optical bool
		esp     string
		want    string
		err     error
	}{
		"a CD alone":                             {func(m *machine) { m.cd(t, "sr0", 1) }, true, "", "/dev/sr0", nil},
		"a CD alone, the loader said nothing":    {func(m *machine) { m.cd(t, "sr0", 1) }, false, "", "/dev/sr0", nil},
		"a CD in a node, booted from the CD":     {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "sda", 2, "sda%d", ours...) }, true, "", "/dev/sr0", nil},
		"a CD in a node, booted from the disk":   {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "sda", 2, "sda%d", ours...) }, false, "", "/dev/sda", nil},
		"a CD in a node, the loader said which":  {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "sda", 2, "sda%d", ours...) }, false, gpt.GUID{2, 1}.String(), "/dev/sda", nil},
		"the CD is not ours":                     {func(m *machine) { m.add(t, "sr0", 1, "none%d"); m.add(t, "sda", 2, "sda%d", ours...) }, true, "", "/dev/sda", nil},
		"two CDs":                                {func(m *machine) { m.cd(t, "sr0", 1); m.cd(t, "sr1", 1) }, true, "", "", ErrMany},
		"a hybrid image on a stick":              {func(m *machine) { m.add(t, "sda", 1, "sda%d", medium...) }, true, "", "/dev/sda", nil},
		"a data disk is nothing to boot from":    {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "sda", 2, "sda%d", release.PartData) }, false, "", "/dev/sr0", nil},
		"a disk that is called like a CD is one": {func(m *machine) { m.add(t, "srv", 1, "srv%d", ours...) }, false, "", "/dev/srv", nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			tt.disks(m)
			f := m.finder()
			f.Optical = tt.optical
			d, err := f.Find(tt.esp)
			if tt.err != nil {
				if !errors.Is(err, tt.err) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d.Path != tt.want || d.Optical() != strings.HasPrefix(d.Path, "/dev/sr0") {
				t.Errorf("found %s, optical %t", d.Path, d.Optical())
			}
			if err := d.complete(); err != nil {
				t.Errorf("it is waited for more: %v", err)
			}
			d.SetNode(1, "/dev/loop7")
			if d.Node(1) != "/dev/loop7" {
				t.Errorf("its first partition is %s", d.Node(1))
			}
		})
	}
}

func TestDataDisk(t *testing.T) {
	for name, tt := range map[string]struct {
		disks func(m *machine)
		want  string
		err   error
	}{
		"one":  {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "vda", 2, "vda%d", release.PartData) }, "/dev/vda", nil},
		"none": {func(m *machine) { m.cd(t, "sr0", 1); m.add(t, "vda", 2, "vda%d") }, "", ErrNone},
		"two": {func(m *machine) {
			m.add(t, "vda", 1, "vda%d", release.PartData)
			m.add(t, "vdb", 2, "vdb%d", release.PartData)
		}, "", ErrMany},
		"an installed node's is never one": {func(m *machine) { m.add(t, "vda", 1, "vda%d", ours...) }, "", ErrNone},
		"a stick is none":                  {func(m *machine) { m.add(t, "sda", 1, "sda%d", medium...) }, "", ErrNone},
		"something beside it":              {func(m *machine) { m.add(t, "vda", 1, "vda%d", release.PartData, "thesis") }, "", ErrNone},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine()
			tt.disks(m)
			d, err := m.finder().DataDisk()
			if tt.err != nil || err != nil {
				if !errors.Is(err, tt.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if d.Path != tt.want {
				t.Errorf("found %s", d.Path)
			}
		})
	}
}
