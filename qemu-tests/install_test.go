package qemutests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kingpost/installer/install"
	"kingpost/internal/fat32"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
	"kingpost/qemu-tests/lab"
)

// emptyDisk makes an empty disk.
func emptyDisk(t *testing.T, name string, size int64) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	f, err := os.Create(p)
	need(t, err, "make a disk")
	defer f.Close()
	need(t, f.Truncate(size), "make a disk")
	return p
}

// TestInstall boots a medium whose node.yaml asks for an installation and a raise, beside an empty disk. Nobody does anything:
// the node installs itself, restarts from the disk by the firmware's boot entry, is another node there, and raises. The
// medium started once more installs nothing; the disk alone, under a firmware that knows nothing, goes on with the raise.
func TestInstall(t *testing.T) {
	t.Parallel()
	config := &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Install: &mesh.InstallConfig{Disk: mesh.DiskSelector{Serial: "TARGET"}}, Mesh: mesh.MeshConfig{Raise: lab.MeshName}}
	stick, target := filepath.Join(t.TempDir(), "stick"), emptyDisk(t, "target", 3<<30)
	need(t, theLab.NewDisk(t.Context(), stick, lab.Spec{Name: "alpha", Config: config, DiskSize: 2 << 30}), "the medium")
	disks := []qemu.Disk{{Path: target, Serial: "TARGET", Unsafe: true}}
	n := boot(t, lab.Spec{Name: "alpha", Disk: stick, UEFI: true, MoreDisks: disks})
	first := n.Key
	waitConsole(t, n, 0, `kingpost: install running onto /dev/vdb: write`)
	if _, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName}); err == nil || !strings.Contains(err.Error(), "installed onto /dev/vdb") {
		t.Errorf("a raise beside an installation: %v", err)
	}
	waitConsole(t, n, 0, `kingpost: install done /dev/vdb: remove the stick; the node restarts from the disk`)
	waitConsole(t, n, 0, `kingpost: install the firmware starts the disk next and first, by its entry Boot00`)
	m := n.Serial.Now()
	need(t, n.WaitUp(t.Context(), m), "restart from the disk")
	s, err := n.Client().Node(t.Context())
	need(t, err, "the installed node")
	if s.Boot.Disk != "/dev/vdb" || s.Install != nil || n.Key == first || len(s.Warnings) != 0 {
		t.Errorf("after the installation: %s", lab.JSON(s))
	}
	waitConsole(t, n, m, `kingpost: raise step 3/10`)
	n.Discard()

	// A firmware that starts the stick first.
	n = boot(t, lab.Spec{Name: "alpha", Disk: stick, UEFI: true, MoreDisks: disks})
	waitConsole(t, n, 0, `kingpost: install installed /dev/vdb: .* is installed from this medium: remove the stick and restart`)
	if st, err := n.Client().Raise(t.Context()); err != nil || st.State != "none" {
		t.Errorf("the medium raises a mesh: %s, %v", lab.JSON(st), err)
	}
	n.Discard()

	checkInstalled(t, target)
	n = boot(t, lab.Spec{Name: "alpha", Disk: target, UEFI: true})
	if *long {
		need(t, lab.Until(t.Context(), 10*lab.StepTime, func(ctx context.Context) error {
			st, err := n.Client().Raise(ctx)
			if err == nil && st.State != "done" {
				err = fmt.Errorf("the raise is %s in step %d", st.State, st.Step)
			}
			return err
		}), "the raise from the disk")
		return
	}
	waitConsole(t, n, 0, `kingpost: state raising`)
}

// checkInstalled looks at an installed disk from outside.
func checkInstalled(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	need(t, err, "open the disk")
	defer f.Close()
	st, err := f.Stat()
	need(t, err, "the disk")
	b, err := release.FindBoot(t.Context(), f, st.Size(), release.DepthTop)
	need(t, err, "what the disk starts")
	if b.Table.FromBackup || b.Table.Size != st.Size() || release.IsDefaultGUIDs(b.Table) {
		t.Errorf("its table: %+v", b.Table)
	}
	esp, err := release.OpenESP(fat32.ReadOnly(f), b.Table)
	need(t, err, "its ESP")
	raw, err := esp.ReadFile(install.MarkFile, 4096)
	need(t, err, "its mark")
	k, err := install.ParseMark(raw)
	need(t, err, "its mark")
	if k.Root != b.Cmdline.RootHash || k.Medium == "" || k.Config == "" {
		t.Errorf("its mark: %+v", k)
	}
}

// TestInstallRefused boots a medium whose node.yaml selects two disks: neither is touched, both are named, and an operator
// can still plan for one of them.
func TestInstallRefused(t *testing.T) {
	t.Parallel()
	config := &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Install: &mesh.InstallConfig{Disk: mesh.DiskSelector{Bus: "virtio", Size: "< 1GiB"}, Then: mesh.ThenWait}}
	a, b := emptyDisk(t, "a", 800<<20), emptyDisk(t, "b", 900<<20)
	n := boot(t, lab.Spec{Name: "alpha", Config: config, MoreDisks: []qemu.Disk{{Path: a, Serial: "ONE", Unsafe: true}, {Path: b, Serial: "TWO", Unsafe: true}}})
	waitConsole(t, n, 0, `kingpost: install refused: node.yaml selects more than one disk: /dev/vdb .*ONE.* and /dev/vdc .*TWO`)
	st, err := n.Client().StartInstall(t.Context(), hostapi.InstallRequest{Install: &mesh.InstallConfig{Disk: mesh.DiskSelector{Serial: "TWO"}}, DryRun: true})
	need(t, err, "a dry run")
	if st.State != hostapi.InstallPlanned || st.Target != "/dev/vdc" {
		t.Errorf("a dry run: %s", lab.JSON(st))
	}
	for _, p := range []string{a, b} {
		blocks := int64(0)
		raw, err := os.Open(p)
		need(t, err, "open the disk")
		buf := make([]byte, 1<<20)
		for {
			k, err := raw.Read(buf)
			for _, c := range buf[:k] {
				if c != 0 {
					blocks++
				}
			}
			if err != nil {
				break
			}
		}
		raw.Close()
		if blocks != 0 {
			t.Errorf("%s was written to", p)
		}
	}
	if _, err := n.Client().StartInstall(t.Context(), hostapi.InstallRequest{Install: &mesh.InstallConfig{Disk: mesh.DiskSelector{Serial: "TWO"}}, Target: "/dev/vdb"}); err == nil || !strings.Contains(err.Error(), "changed places") {
		t.Errorf("another disk than was seen: %v", err)
	}
}

// TestInstallUSB is TestInstall with what most people have: images/node.yaml on a USB stick, an NVMe disk, and the kernel's own
// drivers for both.
func TestInstallUSB(t *testing.T) {
	if !*long {
		t.Skip("builds another image, and reads back GiB in emulation: make test-long runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*lab.BootTime)
	defer cancel()
	dir := t.TempDir()
	image := *nodeImage
	if image == "" {
		need(t, theLab.Run(ctx, theLab.Kingpost, "build", "images/node.yaml", "--out", dir), "build images/node.yaml")
		image = filepath.Join(dir, "node")
	}
	text := fmt.Sprintf("hostname: alpha\nclaim: %s\ninstall: { disk: { only: true } }\nmesh: { raise: %s }\n", theLab.Claim, lab.MeshName)
	stick, target := filepath.Join(dir, "stick"), emptyDisk(t, "target", 5<<30)
	need(t, nodevm.Disk(ctx, stick, filepath.Join(image, "disk.img"), 4<<30, []byte(text), time.Now()), "the stick")
	firmware, err := qemu.FindFirmware("amd64")
	need(t, err, "firmware")
	run, err := os.MkdirTemp("", "kp-")
	need(t, err, "a folder")
	defer os.RemoveAll(run)
	// OVMF forgets every boot entry of a device that QEMU gives no place in the order.
	vm, err := qemu.Start(ctx, qemu.Config{Name: "usb", Dir: run, Accel: "tcg", Memory: 1024, Firmware: firmware, Extra: []string{
		"-device", "qemu-xhci",
		"-blockdev", "driver=file,node-name=stick,cache.no-flush=on,filename=" + stick, "-device", "usb-storage,drive=stick,serial=STICK,removable=on,bootindex=1",
		"-blockdev", "driver=file,node-name=target,cache.no-flush=on,discard=unmap,filename=" + target, "-device", "nvme,drive=target,serial=TARGET,bootindex=2",
	}}, nil)
	need(t, err, "boot")
	defer vm.Kill()
	wait := func(m qemu.Mark, expression string) {
		t.Helper()
		if _, err := vm.Serial.Wait(ctx, m, regexp.MustCompile(expression)); err != nil {
			t.Fatalf("%s: %v\n%s", expression, err, vm.Serial.Since(0))
		}
	}
	wait(0, `kingpost: install done /dev/nvme0n1: remove the stick; the node restarts from the disk`)
	m := vm.Serial.Now()
	wait(m, `kingpost: node alpha key`)
	wait(m, `kingpost: raise step 3/10`)
	vm.Kill()
	checkInstalled(t, target)
}
