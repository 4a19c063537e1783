package qemutests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
	"kingpost/qemu-tests/lab"
)

// formatOutputs are the outputs that TestFormats boots.
const formatOutputs = "disk.img,netboot,iso,data.img,qcow2,vmdk,vhdx,disk-4k.img"

// TestFormats raises a mesh from every form in which a release can be had and that a machine boots from.
func TestFormats(t *testing.T) {
	if !*long {
		t.Skip("a raise for every output, through firmware: make test-long runs it")
	}
	built := func(recipe string) func() (string, error) {
		return sync.OnceValues(func() (string, error) {
			out := t.TempDir()
			err := theLab.Run(t.Context(), theLab.Kingpost, "build", "images/"+recipe+".yaml", "--out", out, "--output", formatOutputs)
			return filepath.Join(out, recipe), err
		})
	}
	vm, node := built("vm"), built("node")
	need1 := func(t *testing.T, dir func() (string, error)) string {
		t.Helper()
		d, err := dir()
		need(t, err, "build the outputs")
		return d
	}

	t.Run("iso.cd", func(t *testing.T) {
		dir := need1(t, vm)
		cd := configured(t, filepath.Join(dir, "vm.iso"), 0)
		s := lab.Spec{Disk: grown(t, filepath.Join(dir, "data.img")), UEFI: true, Extra: []string{
			"-device", "virtio-scsi-pci,id=scsi",
			"-blockdev", "driver=raw,node-name=cd,read-only=on,file.driver=file,file.filename=" + cd,
			"-device", "scsi-cd,bus=scsi.0,drive=cd,bootindex=0",
		}}
		n := raisedFrom(t, s)
		bootedFrom(t, n, "/dev/sr0", "/dev/vda1")
	})
	t.Run("iso.disk", func(t *testing.T) {
		n := raisedFrom(t, lab.Spec{Disk: configured(t, filepath.Join(need1(t, vm), "vm.iso"), 4<<30), UEFI: true})
		bootedFrom(t, n, "/dev/vda", "/dev/vda3")
	})
	t.Run("iso.usb", func(t *testing.T) {
		stick := configured(t, filepath.Join(need1(t, node), "node.iso"), 4<<30)
		n := raisedFrom(t, lab.Spec{Disk: blank(t), UEFI: true, Extra: []string{
			"-device", "qemu-xhci,id=usb",
			"-blockdev", "driver=raw,node-name=stick,file.driver=file,file.filename=" + stick,
			"-device", "usb-storage,bus=usb.0,drive=stick,removable=on,bootindex=0",
		}})
		bootedFrom(t, n, "/dev/sda", "/dev/sda3")
	})
	for _, format := range []string{"qcow2", "vmdk", "vhdx"} {
		t.Run(format, func(t *testing.T) {
			dir := need1(t, vm)
			disk := filepath.Join(t.TempDir(), "vm."+format)
			need(t, qemu.Copy(t.Context(), disk, filepath.Join(dir, "vm."+format), 0), "copy the disk")
			configureFormat(t, disk, format, filepath.Join(dir, "disk.img"))
			n := raisedFrom(t, lab.Spec{Disk: disk, Format: format, UEFI: true})
			bootedFrom(t, n, "/dev/vda", "/dev/vda4")
		})
	}
	t.Run("disk.4k", func(t *testing.T) {
		disk := configured(t, filepath.Join(need1(t, vm), "disk-4k.img"), 4<<30)
		n := raisedFrom(t, lab.Spec{Disk: disk, UEFI: true, SectorSize: 4096})
		bootedFrom(t, n, "/dev/vda", "/dev/vda4")
	})
	t.Run("netboot", func(t *testing.T) {
		dir := filepath.Join(need1(t, vm), "netboot")
		cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		need(t, err, "the command line")
		b := nodevm.Boot{Kernel: filepath.Join(dir, "kernel"), Initrd: filepath.Join(t.TempDir(), "initrd"), Cmdline: strings.TrimSpace(string(cmdline))}
		joinInitrd(t, b.Initrd, filepath.Join(dir, "initrd"), filepath.Join(dir, "root.cpio"))
		n := raisedFrom(t, lab.Spec{Disk: grown(t, filepath.Join(dir, "../data.img")), Boot: &b})
		bootedFrom(t, n, "", "/dev/vda1")
	})
}

// raisedFrom raises a mesh on a machine of s, and has it answer.
func raisedFrom(t *testing.T, s lab.Spec) *lab.Node {
	t.Helper()
	n := boot(t, s)
	raise(t, n, hostapi.RaiseRequest{})
	controllerFromStore(t, n, mesh.KindProcess)
	controllerAnswers(t, n)
	return n
}

// bootedFrom checks from what a node says that it was booted, and where it keeps its data.
func bootedFrom(t *testing.T, n *lab.Node, disk, data string) {
	t.Helper()
	info, err := n.Client().Node(t.Context())
	need(t, err, "ask the node")
	if info.Boot.Disk != disk || info.Boot.Data != data {
		t.Errorf("it was booted from %q with its data on %q, it should be %q and %q", info.Boot.Disk, info.Boot.Data, disk, data)
	}
	if len(info.Boot.Warnings) > 0 {
		t.Errorf("warnings: %q", info.Boot.Warnings)
	}
}

// nodeYAML is what makes a node the lab's.
func nodeYAML() []byte { return fmt.Appendf(nil, "hostname: alpha\nclaim: %q\n", theLab.Claim) }

// configured is a copy of a raw image, of at least size bytes, with a node.yaml.
func configured(t *testing.T, image string, size int64) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), filepath.Base(image))
	need(t, nodevm.Disk(t.Context(), p, image, size, nodeYAML(), theLab.Taken()), "copy %s", image)
	return p
}

// configureFormat gives a disk of another format what node.yaml changes in the raw image that it was made of.
func configureFormat(t *testing.T, disk, format, raw string) {
	t.Helper()
	with, err := os.Open(configured(t, raw, 0))
	need(t, err, "open the configured image")
	defer with.Close()
	without, err := os.Open(raw)
	need(t, err, "open the image")
	defer without.Close()
	st, err := without.Stat()
	need(t, err, "the image")
	piece := filepath.Join(t.TempDir(), "piece")
	const unit = 1 << 20
	a, b := make([]byte, unit), make([]byte, unit)
	args := []string{"-f", format}
	for off := int64(0); off < st.Size(); off += unit {
		_, err1 := with.ReadAt(a, off)
		_, err2 := without.ReadAt(b, off)
		need(t, errors.Join(err1, err2), "read the images")
		if bytes.Equal(a, b) {
			continue
		}
		name := fmt.Sprintf("%s-%d", piece, off)
		need(t, os.WriteFile(name, a, 0o600), "write a piece")
		args = append(args, "-c", fmt.Sprintf("write -s %s %d %d", name, off, unit))
	}
	out, err := exec.CommandContext(t.Context(), "qemu-io", append(args, disk)...).CombinedOutput()
	need(t, err, "qemu-io: %s", out)
	if len(args) == 2 || !strings.Contains(string(out), "wrote") {
		t.Fatalf("node.yaml changes nothing: %s", out)
	}
}

// grown is a copy of a raw image on a disk that is large enough for a mesh.
func grown(t *testing.T, image string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "grown.img")
	need(t, qemu.Copy(t.Context(), p, image, 4<<30), "copy %s", image)
	return p
}

// blank is a disk with nothing on it.
func blank(t *testing.T) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "blank.img")
	f, err := os.Create(p)
	need(t, err, "make a disk")
	defer f.Close()
	need(t, f.Truncate(64<<20), "make a disk")
	return p
}

// joinInitrd puts archives one behind the other, as a boot loader does, and one with a node.yaml that the operator's cpio
// made.
func joinInitrd(t *testing.T, to string, from ...string) {
	t.Helper()
	dir := t.TempDir()
	need(t, os.WriteFile(filepath.Join(dir, "node.yaml"), nodeYAML(), 0o600), "write node.yaml")
	cmd := exec.Command("cpio", "-o", "-H", "newc", "--quiet", "-F", "node.cpio")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader("node.yaml\n")
	out, err := cmd.CombinedOutput()
	need(t, err, "cpio: %s", out)
	w, err := os.Create(to)
	need(t, err, "make an initrd")
	defer w.Close()
	for _, name := range append(from, filepath.Join(dir, "node.cpio")) {
		r, err := os.Open(name)
		need(t, err, "make an initrd")
		n, err := io.Copy(w, r)
		r.Close()
		need(t, err, "make an initrd")
		if n%4 != 0 {
			t.Errorf("%s has %d bytes: what follows it is not where the kernel looks", name, n)
		}
	}
}
