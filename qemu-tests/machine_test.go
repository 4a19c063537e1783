package qemutests

import (
	"context"
	"fmt"
	"image/color"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"kingpost/internal/gpt"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
	"kingpost/qemu-tests/lab"
)

// TestMachineFirstBoot boots a fresh image under UEFI with a network that is written by hand, a bond and a VLAN in it, and
// switches it off by its power button. Its disk then has GUIDs of its own, and the node finds that disk again beside
// another one that is still as the image is.
func TestMachineFirstBoot(t *testing.T) {
	t.Parallel()
	no := false
	config := &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Network: mesh.NetworkConfig{
		DHCP: &no, DNS: []string{"10.0.2.3"},
		Links: []mesh.LinkConfig{
			{Match: &mesh.LinkSelector{MAC: "52:54:00:4b:50:01"}, Addresses: []string{"10.0.2.15/24"}, Gateways: []string{"10.0.2.2"}, SLAAC: &no},
			{Name: "bond0", Bond: &mesh.BondConfig{Links: []mesh.LinkSelector{{MAC: "52:54:00:4b:50:02"}, {MAC: "52:54:00:4b:50:03"}}}, SLAAC: &no},
			{Name: "lan20", VLAN: &mesh.VLANConfig{ID: 20, Link: mesh.LinkSelector{Name: "bond0"}}, Addresses: []string{"10.20.0.5/24", "fd20::5/64"}, MTU: 1400, SLAAC: &no},
		},
	}}
	dir := t.TempDir()
	disk, twin := filepath.Join(dir, "disk.img"), filepath.Join(dir, "twin.img")
	for _, d := range []string{disk, twin} {
		need(t, theLab.NewDisk(t.Context(), d, lab.Spec{Name: "alpha", Config: config}), "the disk")
	}
	nics := []qemu.NIC{{User: &qemu.User{Restrict: true}}, {User: &qemu.User{Restrict: true}}}
	n := boot(t, lab.Spec{Name: "alpha", Disk: disk, UEFI: true, NICs: nics})
	want := []string{"10.0.2.15", "10.20.0.5", "fd20::5"}
	need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
		s, err := n.Client().Node(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(s.Addresses, want) {
			return fmt.Errorf("the node has %q, its warnings are %q", s.Addresses, s.Warnings)
		}
		if len(s.Warnings) != 0 {
			return fmt.Errorf("warnings: %q", s.Warnings)
		}
		return nil
	}), "the addresses of node.yaml")
	pressPower(t, n)
	n.Discard()

	checkDisk(t, disk)
	mine, fresh := table(t, disk), table(t, twin)
	if release.IsDefaultGUIDs(mine) || !release.IsDefaultGUIDs(fresh) {
		t.Errorf("after its first boot the disk is %+v, the image's %+v", mine, fresh)
	}
	if mine.FromBackup || mine.Partitions[3].Size <= fresh.Partitions[3].Size {
		t.Errorf("the table: %+v", mine)
	}

	// Its twin beside it, which the firmware would boot as well.
	n = boot(t, lab.Spec{Name: "alpha", Disk: disk, UEFI: true, NICs: nics, MoreDisks: []qemu.Disk{{Path: twin, Unsafe: true}}})
	s, err := n.Client().Node(t.Context())
	need(t, err, "the node beside its twin")
	if s.Boot.Data == "" || len(s.Warnings) != 0 {
		t.Errorf("beside its twin: data %q, warnings %q", s.Boot.Data, s.Warnings)
	}
	need(t, n.PowerOff(t.Context()), "power off")
	if after := table(t, disk); after.DiskGUID != mine.DiskGUID || after.Partitions[0].GUID != mine.Partitions[0].GUID {
		t.Error("the second boot gives the disk other GUIDs again")
	}
	if !release.IsDefaultGUIDs(table(t, twin)) {
		t.Error("the disk that was not booted was written to")
	}

	// On a machine of its own it becomes another disk than the first.
	n = boot(t, lab.Spec{Name: "alpha", Disk: twin, NICs: nics})
	need(t, n.PowerOff(t.Context()), "power off")
	other := table(t, twin)
	if other.DiskGUID == mine.DiskGUID {
		t.Error("two disks of one image have one disk GUID")
	}
	for i := range other.Partitions {
		if other.Partitions[i].GUID == mine.Partitions[i].GUID {
			t.Errorf("two disks of one image have one GUID for %s", other.Partitions[i].Name)
		}
	}
	checkDisk(t, twin)
}

// TestMachineTwins boots with two disks that are as the image is: which one was booted cannot be told, so the node says so
// and touches neither.
func TestMachineTwins(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, uefi := range []bool{false, true} {
		t.Run(fmt.Sprintf("uefi=%t", uefi), func(t *testing.T) {
			a, b := filepath.Join(dir, fmt.Sprintf("a-%t.img", uefi)), filepath.Join(dir, fmt.Sprintf("b-%t.img", uefi))
			for _, d := range []string{a, b} {
				need(t, theLab.NewDisk(t.Context(), d, lab.Spec{Name: "alpha"}), "the disk")
			}
			n := start(t, lab.Spec{Name: "alpha", Disk: a, UEFI: uefi, MoreDisks: []qemu.Disk{{Path: b, Unsafe: true}}})
			waitConsole(t, n, 0, `kingpost: error .*several disks match: each of /dev/vda and /dev/vdb .*; unplug all but one`)
			waitConsole(t, n, 0, `kingpost: state rescue`)
			n.Kill()
			for _, d := range []string{a, b} {
				if tab := table(t, d); !release.IsDefaultGUIDs(tab) {
					t.Errorf("%s was written to: %+v", d, tab)
				}
			}
		})
	}
}

// TestMachinePower presses the power button of a raised node: everything stops in order, what is depended on last, and
// the file system is clean.
func TestMachinePower(t *testing.T) {
	t.Parallel()
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	d, err := n.Client().Declaration(t.Context())
	need(t, err, "declaration")
	// The modules of the seed need no order; these get one.
	after := map[string][]string{"catalogue": {"controller/server"}, "builder": {"catalogue/server"}, "controller": {"vault/server"}}
	d.Revision++
	d.Writer = "operator"
	for i, r := range d.Resources {
		if r.ID == "server" {
			d.Resources[i].After = after[r.Module]
		}
	}
	need(t, n.Client().Declare(t.Context(), d), "declare an order")
	need(t, n.UntilStatus(t.Context(), lab.StepTime, func(s *hostapi.Status) error {
		if s.Declared != d.Version {
			return fmt.Errorf("declared is %v", s.Declared)
		}
		return lab.Settled(s)
	}), "the node to settle in order")
	m := n.Serial.Now()
	pressPower(t, n)
	for _, line := range []string{"the power button was pressed: poweroff", "powering off"} {
		waitConsole(t, n, m, "kingpost: "+line)
	}
	if text := n.Serial.Since(m); strings.Contains(text, "warning") || strings.Contains(text, "error") {
		t.Errorf("while it stopped:\n%s", text)
	}
	raw := filepath.Join(t.TempDir(), "disk.img")
	flatten(t, n.Path, raw)
	checkDisk(t, raw)
	stoppedInOrder(t, d, hostLog(t, raw))
}

// TestMachineReset wipes a raised node, cuts its power in the middle of that, and raises it again.
func TestMachineReset(t *testing.T) {
	t.Parallel()
	n := raised(t)
	need(t, n.UntilStatus(t.Context(), lab.StepTime, lab.Settled), "the node to settle")
	before, err := n.Client().Node(t.Context())
	need(t, err, "the node")
	if err := n.Client().Reset(t.Context(), hostapi.ResetRequest{Name: "beta"}); err == nil || !strings.Contains(err.Error(), "this is the node alpha") {
		t.Errorf("a reset of another node: %v", err)
	}
	m := n.Serial.Now()
	need(t, n.Client().Reset(t.Context(), hostapi.ResetRequest{Name: "alpha"}), "reset")
	waitConsole(t, n, m, `kingpost: reset: wiping`)
	n.Kill() // in the middle of it

	disk := n.Path
	raw := filepath.Join(t.TempDir(), "disk.img")
	flatten(t, disk, raw)
	n = start(t, lab.Spec{Name: "alpha", Disk: raw})
	waitConsole(t, n, 0, `kingpost: reset: done`)
	waitConsole(t, n, 0, `kingpost: state unclaimed`)
	need(t, n.WaitUp(t.Context(), 0), "boot after the reset")
	if n.Key == before.Key {
		t.Error("the node kept its key")
	}
	s, err := n.Client().Node(t.Context())
	need(t, err, "the node after the reset")
	if s.State != "unclaimed" || s.Claimed || s.Mesh != "" || s.ID == before.ID || s.Release != before.Release || s.Boot.RootHash != before.Boot.RootHash {
		t.Errorf("after the reset: %s", lab.JSON(s))
	}
	if len(s.Warnings) != 1 || !strings.Contains(s.Warnings[0], "its claim, install and mesh do not count") {
		t.Errorf("warnings %q", s.Warnings)
	}
	if _, err := n.Client().StartRaise(t.Context(), hostapi.RaiseRequest{Mesh: lab.MeshName}); err == nil {
		t.Error("the old operator may still raise the node")
	}
	pressPower(t, n)
	n.Discard()
	checkDisk(t, raw)

	// Claimed again by an edit of node.yaml.
	config := fmt.Sprintf("hostname: alpha # once more\nclaim: %s\n", theLab.Claim)
	need(t, nodevm.Configure(raw, []byte(config), n.Started), "edit node.yaml")
	n = boot(t, lab.Spec{Name: "alpha", Disk: raw})
	waitConsole(t, n, 0, `kingpost: state claimed`)
	raise(t, n, hostapi.RaiseRequest{})
	described(t, n, mesh.SeatController)
}

// TestMachineClock boots nodes whose hardware clocks are ten years off, each way, beside a real time server.
func TestMachineClock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := filepath.Join(dir, "chrony.conf")
	need(t, os.WriteFile(conf, []byte("local stratum 8\nallow\nbindaddress 127.0.0.1\ncmdport 0\nbindcmdaddress /\npidfile "+filepath.Join(dir, "pid")+"\n"), 0o644), "chrony's configuration")
	chrony := exec.Command("chronyd", "-x", "-d", "-u", "root", "-f", conf)
	chrony.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	need(t, chrony.Start(), "start chronyd (package chrony)")
	t.Cleanup(func() { chrony.Process.Kill(); chrony.Wait() })
	config := &mesh.NodeConfig{Hostname: "alpha", Claim: theLab.Claim, Network: mesh.NetworkConfig{NTP: []string{"10.0.2.2"}}}
	for _, years := range []int{10, -10} {
		t.Run(fmt.Sprintf("%+d years", years), func(t *testing.T) {
			rtc := time.Now().AddDate(years, 0, 0).UTC().Format("2006-01-02T15:04:05")
			n := boot(t, lab.Spec{Name: "alpha", Config: config, RTC: rtc, Open: true})
			need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
				s, err := n.Client().Node(ctx)
				if err != nil {
					return err
				}
				if s.Clock == nil || !s.Clock.Synced || s.Clock.From != "node.yaml" || s.Clock.Server != "10.0.2.2" {
					return fmt.Errorf("the clock: %s", lab.JSON(s.Clock))
				}
				if off := time.Until(s.Time).Abs(); off > 10*time.Second {
					return fmt.Errorf("the node's clock is off by %s", off)
				}
				return nil
			}), "the clock to be right")
			n.Discard()
		})
	}
}

// pressPower presses the power button and waits until the machine is off. The button's driver comes after the host.
func pressPower(t *testing.T, n *lab.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.StepTime)
	defer cancel()
	need(t, lab.Until(ctx, lab.StepTime, func(ctx context.Context) error {
		if err := n.PowerButton(ctx); err != nil {
			select {
			case <-n.Done():
				return nil
			default:
				return err
			}
		}
		if strings.Contains(n.Serial.Since(0), "the power button was pressed") {
			return nil
		}
		return fmt.Errorf("the node does not notice its power button")
	}), "press the power button")
	need(t, n.Wait(ctx), "power off by the button")
}

// table is the partition table of a raw disk.
func table(t *testing.T, path string) *gpt.Table {
	t.Helper()
	f, err := os.Open(path)
	need(t, err, "open the disk")
	defer f.Close()
	st, err := f.Stat()
	need(t, err, "the disk")
	tab, err := release.ReadGPT(f, st.Size(), 0)
	need(t, err, "partition table of %s", path)
	return tab
}

// checkDisk has other people's tools look at a disk that was switched off in order: partition table and data.
func checkDisk(t *testing.T, path string) {
	t.Helper()
	out, err := exec.Command("sgdisk", "-v", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "No problems found") {
		t.Errorf("sgdisk -v: %v\n%s", err, out)
	}
	out, err = exec.Command("e2fsck", "-fn", dataOf(t, path)).CombinedOutput()
	if err != nil || strings.Contains(string(out), "recovering journal") {
		t.Errorf("e2fsck -fn: %v\n%s", err, out)
	}
	out, err = exec.Command("dumpe2fs", "-h", dataOf(t, path)).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Filesystem state:         clean") || strings.Contains(string(out), "needs_recovery") {
		t.Errorf("the data partition was not unmounted: %v\n%s", err, out)
	}
}

// dataOf names a disk's data partition for the tools of e2fsprogs.
func dataOf(t *testing.T, path string) string {
	t.Helper()
	for _, p := range table(t, path).Partitions {
		if p.Name == release.PartData {
			return fmt.Sprintf("%s?offset=%d", path, p.Start)
		}
	}
	t.Fatalf("%s has no data partition", path)
	return ""
}

// flatten writes an overlay and what it lies over into one raw disk.
func flatten(t *testing.T, from, to string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", "convert", "-O", "raw", from, to).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img convert: %v: %s", err, out)
	}
}

// hostLog is the host's own log on the data partition of a disk that is switched off.
func hostLog(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.Command("debugfs", "-R", "cat "+strings.TrimPrefix(mesh.PathState, mesh.PathData)+"/logs/host.log", dataOf(t, path)).Output()
	need(t, err, "read the host's log")
	return string(out)
}

// stoppedInOrder checks that what others come after was stopped after them, by the host's log.
func stoppedInOrder(t *testing.T, d *mesh.Declaration, log string) {
	t.Helper()
	at := map[string]int{}
	for i, line := range strings.Split(log, "\n") {
		if strings.Contains(line, "stop process") {
			if _, key, ok := strings.Cut(line, "resource="); ok {
				key, _, _ = strings.Cut(key, " ")
				at[strings.Trim(key, `"`)] = i + 1
			}
		}
	}
	pairs := 0
	for _, r := range d.Resources {
		for _, dep := range r.After {
			if !strings.Contains(dep, "/") {
				dep = r.Module + "/" + dep
			}
			switch {
			case at[r.Key()] == 0 || at[dep] == 0:
				t.Errorf("the log does not say that %s (line %d) and %s (line %d) were stopped", r.Key(), at[r.Key()], dep, at[dep])
			case at[r.Key()] > at[dep]:
				t.Errorf("%s was stopped after %s, which it needs", r.Key(), dep)
			}
			pairs++
		}
	}
	if pairs == 0 {
		t.Error("nothing depends on anything, so there is no order to see")
	}
	if t.Failed() {
		t.Log(log[max(0, len(log)-8000):])
	}
}

// TestMachineConsole boots a machine without a screen and one without a serial line: each shows on what it has who it is.
func TestMachineConsole(t *testing.T) {
	t.Parallel()
	t.Run("no screen", func(t *testing.T) {
		n := boot(t, lab.Spec{Name: "alpha", NoScreen: true})
		waitConsole(t, n, 0, `kingpost: state claimed`)
		need(t, n.PowerOff(t.Context()), "power off")
	})
	t.Run("no serial", func(t *testing.T) {
		n := start(t, lab.Spec{Name: "alpha", NoSerial: true})
		need(t, n.WaitUpBlind(t.Context()), "boot without a serial line")
		s, err := n.Client().Node(t.Context())
		need(t, err, "the node")
		if len(s.Warnings) != 0 {
			t.Errorf("warnings %q", s.Warnings)
		}
		// The bar, the rows below it and the hint are there: several colours, and not much of each.
		need(t, lab.Until(t.Context(), lab.StepTime, func(ctx context.Context) error {
			path := filepath.Join(t.TempDir(), "screen.png")
			if err := n.Screenshot(ctx, path); err != nil {
				return err
			}
			colours, err := coloursOf(path)
			if err == nil && (len(colours) < 5 || len(colours) > 64) {
				err = fmt.Errorf("the screen has %d colours", len(colours))
			}
			return err
		}), "a picture of the node on its screen")
		if dir := os.Getenv("KINGPOST_SCREENS"); dir != "" {
			need(t, n.Screenshot(t.Context(), filepath.Join(dir, "console.png")), "keep the picture")
		}
		need(t, n.PowerOff(t.Context()), "power off")
	})
}

// coloursOf counts the colours of a picture.
func coloursOf(path string) (map[color.Color]int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		return nil, err
	}
	out := map[color.Color]int{}
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			out[img.At(x, y)]++
		}
	}
	return out, nil
}
