package qemutests

import (
	"context"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kingpost/internal/cpiofs"
	"kingpost/internal/fat32"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
	"kingpost/qemu-tests/lab"
)

// TestFlash has the operator's program, as root on a real kernel, flash a virtio disk with sectors of 512 bytes and an NVMe
// disk with sectors of 4096, both dirty, and refuse a mounted, a read-only and a small one. Both disks then boot through
// firmware.
func TestFlash(t *testing.T) {
	if !*long {
		t.Skip("three machines that hash hundreds of MiB in emulation: make test-long runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*lab.BootTime)
	defer cancel()
	dir := t.TempDir()
	image := filepath.Join(dir, "image.img")
	root := largeESP(t, image)
	st, err := os.Stat(image)
	need(t, err, "the image")
	target := func(name string, size int64) string {
		p := filepath.Join(dir, name)
		f, err := os.Create(p)
		need(t, err, "make a disk")
		defer f.Close()
		need(t, f.Truncate(size), "make a disk")
		for off := int64(0); off < size; off += 37 << 20 { // old bytes here and there, at the end too
			_, err = f.WriteAt([]byte(strings.Repeat("old!", 1<<14)), min(off, size-1<<16))
			need(t, err, "make a disk")
		}
		return p
	}
	plain, large, small := target("plain", st.Size()+300<<20), target("large", 4<<30), target("small", st.Size()-1<<20)
	commands := []string{
		"/kingpost flash /dev/vda /dev/vdb --yes",
		"/kingpost flash /dev/vda /dev/vdb --yes --expect-serial OTHER",
		"/kingpost flash /dev/vda /dev/vda --yes --expect-serial IMAGE",
		"/kingpost flash /dev/vda /dev/vdc --yes --expect-serial SMALL",
		"/kingpost flash /dev/vda /dev/vdb --yes --expect-serial PLAIN --config /node.yaml",
		"/kingpost flash /dev/vda /dev/nvme0n1 --yes --expect-serial LARGE --config /node.yaml",
		"mount /dev/vdb4",
		"/kingpost flash /dev/vda /dev/vdb --yes --expect-serial PLAIN",
		"/kingpost flash /dev/vda /dev/vdb4 --yes --expect-serial PLAIN",
	}
	serial := flashIn(t, ctx, commands, []qemu.Disk{{Path: image, Serial: "IMAGE", ReadOnly: true, Unsafe: true}, {Path: plain, Serial: "PLAIN", Unsafe: true}, {Path: small, Serial: "SMALL", Unsafe: true}},
		"-blockdev", "driver=file,node-name=nvmefile,discard=unmap,filename="+large, "-device", "nvme,serial=LARGE,drive=nvmefile,logical_block_size=4096,physical_block_size=4096")
	for i, want := range []string{"exit status 2", "exit status 3", "exit status 3", "exit status 3", "<nil>", "<nil>", "<nil>", "exit status 3", "exit status 3"} {
		if !strings.Contains(serial, "flashguest: "+commands[i]+": "+want) {
			t.Errorf("%s: not %s", commands[i], want)
		}
	}
	for _, want := range []string{"PLAIN, \"OTHER\" was expected", "is read-only", "use a larger one", "mounted on /mnt", "is a partition of /dev/vdb"} {
		if !strings.Contains(serial, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	if t.Failed() {
		t.Log(serial)
		return
	}
	for _, c := range []struct {
		name, path string
		sector     int
	}{{"plain", plain, 512}, {"4kn", large, 4096}} {
		t.Run(c.name, func(t *testing.T) {
			f, err := os.Open(c.path)
			need(t, err, "open the disk")
			defer f.Close()
			st, err := f.Stat()
			need(t, err, "open the disk")
			b, err := release.FindBoot(ctx, f, st.Size(), release.DepthWhole)
			need(t, err, "what the disk starts")
			if b.Cmdline.RootHash != root || b.Table.SectorSize != c.sector || b.Table.Size != st.Size() || b.Table.FromBackup {
				t.Errorf("it starts %+v", b)
			}
			firmware, err := qemu.FindFirmware("amd64")
			need(t, err, "firmware")
			run, err := os.MkdirTemp("", "kp-")
			need(t, err, "a folder")
			defer os.RemoveAll(run)
			vm, err := qemu.Start(ctx, qemu.Config{Name: c.name, Dir: run, Accel: "tcg", Firmware: firmware, Disks: []qemu.Disk{{Path: c.path, SectorSize: c.sector, Unsafe: true}}}, nil)
			need(t, err, "boot")
			defer vm.Kill()
			wait, cancel := context.WithTimeout(ctx, lab.BootTime)
			defer cancel()
			if _, err := vm.Serial.Wait(wait, 0, regexp.MustCompile(`node flashed key`)); err != nil {
				t.Errorf("the flashed disk does not boot: %v\n%s", err, vm.Serial.Since(0))
			}
		})
	}
}

// flashIn runs commands in a machine with the given disks, as root of the image's own kernel, and returns its console.
func flashIn(t *testing.T, ctx context.Context, commands []string, disks []qemu.Disk, extra ...string) string {
	t.Helper()
	guest, err := theLab.Guest(ctx, "./qemu-tests/flashguest")
	need(t, err, "build the guest")
	kingpost, err := theLab.Guest(ctx, "./cmd/kingpost")
	need(t, err, "build the operator's program")
	dir, err := os.MkdirTemp("", "kp-") // sockets want a short path
	need(t, err, "a folder")
	defer os.RemoveAll(dir)
	initrd := filepath.Join(dir, "initrd")
	out, err := os.Create(initrd)
	need(t, err, "the initrd")
	defer out.Close()
	own, err := os.Open(filepath.Join(theLab.ImageDir, "initrd"))
	need(t, err, "the image's initrd")
	defer own.Close()
	_, err = io.Copy(out, own)
	need(t, err, "the initrd")
	// A second archive behind the first: its /init takes the place of the image's.
	need(t, cpiofs.WriteInitrd(out, []cpiofs.Entry{{Path: "init", Mode: 0o755, Data: guest}, {Path: "kingpost", Mode: 0o755, Data: kingpost},
		{Path: "commands", Mode: 0o644, Data: []byte(strings.Join(commands, "\n") + "\n")}, {Path: "node.yaml", Mode: 0o644, Data: []byte("hostname: flashed\n")}}), "the initrd")
	vm, err := qemu.Start(ctx, qemu.Config{Name: "flash", Dir: dir, Accel: "tcg", Kernel: filepath.Join(theLab.ImageDir, "kernel"), Initrd: initrd, Append: "console=ttyS0 quiet panic=-1",
		NoReboot: true, Disks: disks, Extra: extra}, nil)
	need(t, err, "start the machine")
	defer vm.Kill()
	_, err = vm.Serial.Wait(ctx, 0, regexp.MustCompile(`flashguest: done`))
	if err != nil {
		t.Fatalf("%v\n%s", err, vm.Serial.Since(0))
	}
	return strings.ReplaceAll(vm.Serial.Since(0), "\r", "")
}

// largeESP writes the lab's image anew with an ESP that is large enough for sectors of 4096 bytes, and returns the root hash.
func largeESP(t *testing.T, to string) string {
	t.Helper()
	in, err := os.Open(theLab.Image)
	need(t, err, "the image")
	defer in.Close()
	b, err := release.FindBoot(t.Context(), in, theLab.ImageSize, release.DepthTop)
	need(t, err, "the image")
	esp, err := release.OpenESP(fat32.ReadOnly(in), b.Table)
	need(t, err, "the image's ESP")
	spec := release.DiskSpec{Arch: "amd64", ESPSize: 300 << 20}
	contents := release.Contents{ESP: files(t, esp, ""), Time: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)}
	for _, p := range b.Table.Partitions {
		c := &release.Content{ReaderAt: io.NewSectionReader(in, p.Start, p.Size), Size: p.Size}
		switch p.Name {
		case release.PartRootA:
			spec.RootSize, contents.RootA = p.Size, c
		case release.PartData:
			spec.DataSize, contents.Data = p.Size, c
		}
	}
	plan, err := release.NewPlan(spec)
	need(t, err, "plan")
	out, err := os.Create(to)
	need(t, err, "make the image")
	defer out.Close()
	need(t, out.Truncate(plan.Size), "make the image")
	need(t, release.WriteDisk(t.Context(), out, plan, contents, nil), "make the image")
	return b.Cmdline.RootHash
}

func files(t *testing.T, esp *fat32.FS, dir string) []fat32.File {
	t.Helper()
	names, err := esp.List(dir)
	need(t, err, "list %q", dir)
	var out []fat32.File
	for _, n := range names {
		p := path.Join(dir, n.Name)
		if n.Dir {
			out = append(out, files(t, esp, p)...)
			continue
		}
		data, err := esp.ReadFile(p, math.MaxUint32)
		need(t, err, "read %s", p)
		out = append(out, fat32.File{Path: p, Data: data})
	}
	return out
}
