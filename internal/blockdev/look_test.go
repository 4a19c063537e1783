package blockdev

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kingpost/internal/gpt"
)

// What wipefs calls what Signatures finds. Each is made by its own program, or by its magic.
func TestSignaturesAgreeWithWipefs(t *testing.T) {
	const size = 64 << 20
	at := func(off int64, b string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			f, err := os.OpenFile(file, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt([]byte(b), off); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(args ...string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			if out, err := exec.Command(args[0], append(args[1:], file)...).CombinedOutput(); err != nil {
				t.Skipf("%s: %v: %s", args[0], err, out)
			}
		}
	}
	for name, c := range map[string]struct {
		make   func(*testing.T, string)
		want   string // of ours
		wipefs string // of wipefs; empty where it wants more than a magic
	}{
		"ext4":   {run("mkfs.ext4", "-q", "-L", "my-root"), `ext2, ext3 or ext4 "my-root"`, "ext4"},
		"FAT32":  {run("mkfs.vfat", "-F", "32", "-n", "STICK"), `FAT "STICK"`, "vfat"},
		"FAT16":  {run("mkfs.vfat", "-F", "16", "-n", "STICK"), `FAT "STICK"`, "vfat"},
		"swap":   {run("mkswap", "-L", "sw"), `swap "sw"`, "swap"},
		"LUKS":   {at(0, "LUKS\xba\xbe\x00\x01"), "LUKS", "crypto_LUKS"},
		"XFS":    {at(0, "XFSB"), "XFS", ""},
		"MD 1.2": {at(4096, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), "MD array", ""},
		"MD 1.0": {at(size-8192, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"), "MD array", ""},
		"MD 0.9": {at(size-65536, "\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00"), "MD array", "linux_raid_member"},
		"DDF":    {at(size-512, "\xde\x11\xde\x11"), "firmware RAID (DDF)", ""},
		"ZFS": {func(t *testing.T, f string) {
			for i := int64(0); i < 8; i++ {
				at(size-256<<10+128<<10+i*1024, "\x0c\xb1\xba\x00\x00\x00\x00\x00")(t, f)
			}
		}, "ZFS", ""},
		"LVM":     {at(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001"), "LVM", ""},
		"nothing": {at(0, "hello"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "disk")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(file, size); err != nil {
				t.Fatal(err)
			}
			c.make(t, file)
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var got []string
			for _, s := range Signatures(f, size) {
				if !slices.Contains(got, s.String()) {
					got = append(got, s.String())
				}
			}
			if strings.Join(got, ",") != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if c.wipefs == "" {
				return
			}
			out, err := exec.Command("/usr/sbin/wipefs", "-n", file).CombinedOutput()
			if err != nil || !strings.Contains(string(out), c.wipefs) {
				t.Errorf("wipefs: %v: %s", err, out)
			}
		})
	}
}

type memory []byte

func (m memory) ReadAt(p []byte, off int64) (int, error) { return bytes.NewReader(m).ReadAt(p, off) }
func (m memory) WriteAt(p []byte, off int64) (int, error) {
	return copy(m[off:], p), nil
}

func TestLook(t *testing.T) {
	const size = 8 << 20
	table := &gpt.Table{SectorSize: 512, Size: size, DiskGUID: gpt.GUID{1}}
	for i := range 128 { // as many as there can be
		name := fmt.Sprintf("Größe %d\x1b[2J", i)
		table.Partitions = append(table.Partitions, gpt.Partition{Number: i + 1, Name: name, Type: gpt.GUID{1}, GUID: gpt.GUID{2, byte(i)}, Start: 1<<20 + int64(i)*4096, Size: 4096})
	}
	m := make(memory, size)
	if err := gpt.Write(m, table); err != nil {
		t.Fatal(err)
	}
	c := Look(m, size)
	if len(c.Partitions) != 128 || c.Partitions[127].Name != "Größe 127[2J" || c.Signatures[0].Type != "GPT" {
		t.Errorf("%d partitions, the last %q, %v", len(c.Partitions), c.Partitions[127].Name, c.Signatures)
	}
	clear(m[:4096])
	if c := Look(m, size); len(c.Partitions) != 128 || !strings.Contains(c.Signatures[0].Type, "backup") {
		t.Errorf("with the head gone: %d partitions, %v", len(c.Partitions), c.Signatures)
	}
	clear(m)
	copy(m[446:], []byte{0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0xee, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0})
	m[510], m[511] = 0x55, 0xaa
	copy(m[2048*512+0x438:], "\x53\xef")
	if c := Look(m, size); len(c.Partitions) != 1 || c.Partitions[0].Size != 1<<20 || len(c.Partitions[0].Signatures) != 1 {
		t.Errorf("MBR: %+v", c)
	}
}

func FuzzLook(f *testing.F) {
	f.Add(make([]byte, 70_000))
	b := make([]byte, 4096)
	copy(b[446:], []byte{0, 0, 0, 0, 0x83, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	b[510], b[511] = 0x55, 0xaa
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) { Look(bytes.NewReader(b), int64(len(b))) })
}
