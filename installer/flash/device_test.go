package flash

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kingpost/internal/blockdev"
	"kingpost/internal/release"
)

// loop makes a loop device of size bytes, full of old bytes and of what other programs leave at head and tail.
func loop(t *testing.T, size int64, sector string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "backing")
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(off int64, text string) {
		if _, err := f.WriteAt([]byte(text), off); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	old := strings.Repeat("old!", 16<<18) // 16 MiB
	write(0, old)
	write(size-16<<20, old)
	write(512, "LABELONE\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x00\x00LVM2 001")
	write(4096, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00")
	write(0x10040, "_BHRfS_M")
	write(size&^65535-65536, "\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a\x00\x00\x00")
	write(size-512, "\xde\x11\xde\x11")
	for _, label := range []int64{0, 256 << 10, size - 512<<10, size - 256<<10} {
		for i := int64(0); i < 8; i++ {
			write(label+128<<10+i*1024, "\x0c\xb1\xba\x00\x00\x00\x00\x00")
		}
	}
	out, err := exec.Command("/usr/sbin/losetup", "-f", "--show", "--sector-size", sector, p).CombinedOutput()
	if err != nil {
		t.Skipf("no loop devices here (root and the kernel's loop driver): %v: %s", err, out)
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("/usr/sbin/losetup", "-d", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

func wipefs(t *testing.T, dev string) string {
	t.Helper()
	out, err := exec.Command("/usr/sbin/wipefs", "-n", "-O", "TYPE,OFFSET", dev).CombinedOutput()
	if err != nil {
		t.Fatalf("wipefs: %v: %s", err, out)
	}
	return string(out)
}

// A real block device that was part of everything: other programs find nothing of that afterwards, and no hole keeps old bytes.
func TestDevice(t *testing.T) {
	for name, c := range map[string]struct {
		esp    int64
		sector string
	}{"512": {smallESP, "512"}, "4kn": {300 << 20, "4096"}} {
		t.Run(name, func(t *testing.T) {
			m := makeImage(t, "0.2.0", c.esp)
			dev := loop(t, m.disk.Size()+11<<20, c.sector)
			before := wipefs(t, dev)
			if !strings.Contains(before, "btrfs") || !strings.Contains(before, "LVM2_member") && !strings.Contains(before, "zfs_member") {
				t.Fatalf("wipefs does not see what is to be cleared:\n%s", before)
			}
			survey, err := Look(blockdev.System(), dev)
			if err != nil || survey.Refuse() != nil || !survey.Device {
				t.Fatalf("%+v, %v, %v", survey, err, survey.Refuse())
			}
			if len(survey.Contents.Signatures) < 4 {
				t.Errorf("only %v is seen on it", survey.Contents.Signatures)
			}
			d, err := blockdev.Open(dev)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			in := m.input(t, d)
			in.Workers = 0
			if _, err := Run(t.Context(), in); err != nil {
				t.Fatal(err)
			}
			b, err := release.FindBoot(t.Context(), d, d.Size(), release.DepthWhole)
			if err != nil || b.Cmdline.RootHash != m.root {
				t.Fatalf("it starts %+v, %v", b, err)
			}
			after := wipefs(t, dev)
			for line := range strings.Lines(after) {
				if f := strings.Fields(line); len(f) > 0 && f[0] != "TYPE" && f[0] != "gpt" && f[0] != "PMBR" {
					t.Errorf("wipefs still finds %s", line)
				}
			}
			if !strings.Contains(after, "gpt") {
				t.Errorf("wipefs finds no table:\n%s", after)
			}
			stale, got, want := 0, make([]byte, 4096), make([]byte, 4096)
			for off := int64(1 << 20); off < m.disk.Size()-1<<20; off += 4096 {
				if p := b.Table.Partitions[0]; off >= p.Start && off < p.Start+p.Size {
					continue // node.yaml and, on 4Kn, another file system
				}
				d.ReadAt(got, off)
				m.disk.ReadAt(want, off)
				if !bytes.Equal(got, want) {
					stale++
				}
			}
			if stale != 0 {
				t.Errorf("%d blocks have other bytes than the image", stale)
			}
			if err := d.Reread(); err != nil {
				t.Logf("loops without partitions do not read them: %v", err)
			}
		})
	}
}

func TestLook(t *testing.T) {
	dir := t.TempDir()
	inv := blockdev.System()
	file := filepath.Join(dir, "disk.img")
	if s, err := Look(inv, file); err != nil || s.Device || s.Exists || s.Path != file {
		t.Errorf("a new file: %+v, %v", s, err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if s, err := Look(inv, link); err != nil || s.Path != file || s.Word() != "disk.img" || s.Size != 1 {
		t.Errorf("a link: %+v, %v", s, err)
	}
	var refused *RefusedError
	for _, name := range []string{"/dev/sdzz", "/dev/null", dir} {
		if _, err := Look(inv, name); !errors.As(err, &refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Look(inv, filepath.Join(dir, "absent", "disk.img")); err == nil {
		t.Error("a file in a folder that is not there")
	}
}

// The expectation of a serial number protects only where it names one disk.
func TestExpect(t *testing.T) {
	m := t.TempDir()
	add := func(name, serial string) {
		dir := filepath.Join(m, "block", name)
		os.MkdirAll(filepath.Join(dir, "queue"), 0o755)
		for f, text := range map[string]string{"size": "2048", "serial": serial, "queue/logical_block_size": "512"} {
			os.WriteFile(filepath.Join(dir, f), []byte(text+"\n"), 0o644)
		}
	}
	add("vda", "AAA")
	add("vdb", "SAME")
	add("vdc", "SAME")
	add("vdd", "")
	inv := blockdev.Inventory{Sys: os.DirFS(m), Proc: os.DirFS(t.TempDir()), Dev: "/dev"}
	expect := func(name, serial string) error {
		d, err := inv.Disk(name)
		if err != nil {
			t.Fatal(err)
		}
		return (&Survey{Path: d.Path, Device: true, Survey: blockdev.Survey{Disk: d}, inventory: inv}).Expect(serial)
	}
	for _, c := range []struct{ disk, serial, want string }{
		{"vda", "AAA", ""}, {"vda", "BBB", "disks may have changed places"}, {"vdb", "SAME", "/dev/vdc"}, {"vdd", NoSerial, ""}, {"vda", NoSerial, "AAA"}, {"vdd", "AAA", "no serial number"},
	} {
		err := expect(c.disk, c.serial)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s, %q: %v", c.disk, c.serial, err)
		}
	}
	add("vde", "")
	if err := expect("vdd", NoSerial); err == nil {
		t.Error("two disks without a serial number, and one of them is believed to be meant")
	}
	held := &Survey{Path: "/dev/vda", Device: true, Survey: blockdev.Survey{Disk: blockdev.Disk{Size: 1}, Uses: []blockdev.Use{{Device: "/dev/vda1", What: "held by the LVM volume vg-root", Advice: "vgchange -an vg"}}}}
	for name, c := range map[string]struct {
		s    *Survey
		want string
	}{
		"held":       {held, "vgchange -an vg"},
		"the system": {&Survey{Device: true, Survey: blockdev.Survey{Disk: blockdev.Disk{Size: 1}, Uses: []blockdev.Use{{System: true}}}}, "that this system runs from"},
		"read-only":  {&Survey{Device: true, Survey: blockdev.Survey{Disk: blockdev.Disk{Size: 1, ReadOnly: true}}}, "read-only"},
		"no medium":  {&Survey{Device: true}, "no medium"},
	} {
		if err := c.s.Refuse(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReceiptSignatureIsOpenssls(t *testing.T) {
	m := makeImage(t, "0.2.0", smallESP)
	d := m.dirty(t, 0, 512)
	res, err := Run(t.Context(), m.input(t, d))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) string {
		cmd := exec.Command("openssl", args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("openssl %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	run("genpkey", "-algorithm", "ed25519", "-out", "key")
	run("pkey", "-in", "key", "-pubout", "-out", "pub")
	pemText, err := os.ReadFile(filepath.Join(dir, "key"))
	if err != nil {
		t.Fatal(err)
	}
	key := parseKey(t, pemText)
	text, sig, err := NewReceipt(res).Encode(key)
	if err != nil {
		t.Fatal(err)
	}
	os.WriteFile(filepath.Join(dir, "r.json"), text, 0o644)
	os.WriteFile(filepath.Join(dir, "r.sig"), sig, 0o644)
	if out := run("pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", "pub", "-in", "r.json", "-sigfile", "r.sig"); !strings.Contains(out, "Verified Successfully") {
		t.Error(out)
	}
	if res.Map.Digest() != m.mapDigest(t) || !strings.Contains(string(text), "sha256:"+m.mapDigest(t)) {
		t.Error("the receipt does not say what was read back")
	}
}
