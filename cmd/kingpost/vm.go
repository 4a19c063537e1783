package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"kingpost/internal/mesh"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
	"kingpost/internal/scratch"
)

// powerOffTime is how long a node may take to stop everything in order.
const powerOffTime = 60 * time.Second

// pressEvery is how long a press of the power button has to be heard.
const pressEvery = 5 * time.Second

// vmFlags are the flags of `kingpost vm`.
type vmFlags struct {
	memory, cpus int
	diskSize     string
	disk         string
	config       string
	claim        string
	raise        string
	serial       string
	accel        string
	arch         string
	forward      []string
	direct       bool
	offline      bool
}

func newVMCommand() *cobra.Command {
	var f vmFlags
	cmd := &cobra.Command{
		Use:   "vm IMAGE",
		Short: "Run an image in QEMU, with the node's API on a local port",
		Long: `Run a disk image (or the output folder of a build, which holds disk.img) in QEMU, under UEFI.

The machine runs on a copy, which is removed afterwards; --disk names one that stays and is used again. The node's
console goes to standard output, or to the file of --serial. What this command itself has to say goes to standard error:
the local address of the node's API, and the node's key as its console shows it. Ctrl-C powers the node off in order,
a second one at once.`,
		Example: `  kingpost vm out/vm
  kingpost vm out/vm --claim operator.pub --disk-size 20GiB
  kingpost vm out/vm --config node.yaml --disk alpha.img --forward 5000 --offline`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runVM(cmd.Context(), args[0], f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fl := cmd.Flags()
	fl.IntVar(&f.memory, "memory", 1024, "memory of the machine, in MiB")
	fl.IntVar(&f.cpus, "cpus", 1, "number of virtual CPUs; without KVM more than one makes it slower")
	fl.StringVar(&f.diskSize, "disk-size", "8GiB", "size of the disk; the node's data partition grows into it")
	fl.StringVar(&f.disk, "disk", "", "`FILE` to run on: made from IMAGE when it does not exist, kept afterwards")
	fl.StringVar(&f.config, "config", "", "node.yaml `FILE` to put on the ESP of a new disk")
	fl.StringVar(&f.claim, "claim", "", "`FILE` with the operator's public key (or private key, of which only the public half is used), for node.yaml")
	fl.StringVar(&f.raise, "raise", "", "name of a `MESH` that the node raises by itself, for node.yaml; needs --claim")
	fl.StringVar(&f.serial, "serial", "-", "where the console goes: `FILE`, or - for standard output")
	fl.StringSliceVar(&f.forward, "forward", nil, "forward a TCP port to the node: `HOST:GUEST`, or GUEST for any free one; without one for the API, that gets a free one")
	fl.BoolVar(&f.direct, "direct", false, "start the image's kernel directly, without firmware and boot loader")
	fl.BoolVar(&f.offline, "offline", false, "cut the machine's network off from everything but the forwarded ports")
	fl.StringVar(&f.accel, "accel", "", "kvm or tcg (default: KVM where it can be used)")
	fl.StringVar(&f.arch, "arch", "amd64", "architecture of the image: amd64 or arm64")
	return cmd
}

func runVM(ctx context.Context, image string, f vmFlags, stdout, stderr io.Writer) error {
	size, err := parseSize(f.diskSize)
	if err != nil {
		return usageError("--disk-size: %v", err)
	}
	forwards, err := f.forwards()
	if err != nil {
		return err
	}
	if err := f.checkMachine(); err != nil {
		return err
	}
	config, err := f.nodeConfig()
	if err != nil {
		return err
	}
	if st, err := os.Stat(image); err == nil && st.IsDir() {
		image = filepath.Join(image, "disk.img")
	}
	if _, err := os.Stat(image); err != nil {
		return fmt.Errorf("image: %w; `kingpost build images/vm.yaml` makes one, out/vm", err)
	}

	if err := checkApart(f.disk, image); err != nil {
		return err
	}
	if err := checkImages(image, f.disk); err != nil {
		return err
	}

	// Who reads what is said here may go first; the machine and its files must still be put away.
	signal.Ignore(syscall.SIGPIPE)
	held, err := scratch.Dir(os.TempDir(), "kingpost-vm-")
	if err != nil {
		return vmSpace(err, os.TempDir(), f.disk)
	}
	defer held.Remove()
	dir := held.Path
	disk := f.disk
	if disk == "" {
		disk = filepath.Join(dir, "disk.img")
	}
	if _, err := os.Stat(disk); errors.Is(err, os.ErrNotExist) {
		if err := nodevm.Disk(ctx, disk, image, size, config, time.Now()); err != nil {
			return vmSpace(err, filepath.Dir(disk), f.disk)
		}
	} else if config != nil {
		if err := f.sameConfig(disk, config); err != nil {
			return err
		}
	}
	c := qemu.Config{
		Name: "kingpost", Dir: dir, Arch: f.arch, Accel: f.accel, Memory: f.memory, CPUs: f.cpus,
		Disks: []qemu.Disk{{Path: disk}},
		NICs:  []qemu.NIC{{User: &qemu.User{Restrict: f.offline, Forwards: forwards}}},
	}
	if f.direct {
		b, err := nodevm.Direct(dir, disk)
		if err != nil {
			return vmSpace(err, dir, f.disk)
		}
		c.Kernel, c.Initrd, c.Append = b.Kernel, b.Initrd, b.Cmdline
	} else if c.Firmware, err = qemu.FindFirmware(f.arch); err != nil {
		return err
	}
	console := stdout
	if f.serial != "-" {
		file, err := os.Create(f.serial)
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		defer file.Close()
		console = file
	}
	vm, err := qemu.Start(ctx, c, console)
	var taken *qemu.PortTakenError
	if errors.As(err, &taken) {
		return fmt.Errorf("%w; let --forward PORT:%d name another one, or --forward %d take any that is free", err, taken.Guest, taken.Guest)
	}
	if err != nil {
		return vmSpace(err, dir, f.disk)
	}
	defer vm.Kill()
	return followVM(ctx, vm, forwards, stderr)
}

// checkImages refuses an image or a disk that is none of a node: no firmware would say so.
func checkImages(paths ...string) error {
	for _, path := range paths {
		file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us up
		if path == "" || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			_, err = nodevm.UKI(file)
			file.Close()
		}
		if err != nil {
			return fmt.Errorf("%s is no disk image of a node: %w; `kingpost inspect` tells what it is", path, err)
		}
	}
	return nil
}

// checkApart refuses a disk on which the machine would write into the image, or into the build that the image is of.
func checkApart(disk, image string) error {
	if disk == "" {
		return nil
	}
	same := func(a, b string) bool {
		x, err := os.Stat(a)
		y, yerr := os.Stat(b)
		return err == nil && yerr == nil && os.SameFile(x, y)
	}
	if same(disk, image) {
		return usageError("--disk: %s is the image itself, which is not written to; name another file", disk)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(image), "release.json")); err == nil && same(filepath.Dir(disk), filepath.Dir(image)) {
		return usageError("--disk: %s lies in the folder of a build, which no machine may write to; name a file elsewhere", disk)
	}
	return nil
}

// vmSpace adds to the error of a full disk what helps: dir is where there was no more space, disk what --disk says.
func vmSpace(err error, dir, disk string) error {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return err
	}
	if disk != "" && dir == filepath.Dir(disk) {
		return fmt.Errorf("%w\nThe disk is full: free some space at %s, or let --disk name a file elsewhere. The machine was not started", err, dir)
	}
	return fmt.Errorf("%w\nThe disk is full: free some space at %s, let TMPDIR name a folder elsewhere, or let --disk name a file elsewhere for the machine's disk. The machine was not started", err, os.TempDir())
}

// followVM says how to reach the node and stays until it has ended, or until ctx ends and it was powered off.
func followVM(ctx context.Context, vm *qemu.VM, forwards []qemu.Forward, stderr io.Writer) error {
	for _, w := range forwards {
		port := w.Host
		if port == 0 {
			var err error
			if port, err = vm.Port(ctx, w.Guest); err != nil {
				return err
			}
		}
		what := "port " + strconv.Itoa(w.Guest)
		if w.Guest == mesh.PortAPI {
			what = "API"
		}
		fmt.Fprintf(stderr, "kingpost vm: %s at 127.0.0.1:%d\n", what, port)
	}
	said := make(chan struct{})
	follow, cancel := context.WithCancel(ctx)
	go func() {
		defer close(said)
		if name, key, err := nodevm.WaitIdentity(follow, vm.Serial, 0); err == nil {
			fmt.Fprintf(stderr, "kingpost vm: node %s key %s\n", name, key)
		}
	}()
	defer func() { cancel(); <-said }()

	select {
	case <-vm.Done():
		return vm.Wait(context.WithoutCancel(ctx))
	case <-ctx.Done():
	}
	fmt.Fprintln(stderr, "kingpost vm: powering the node off; Ctrl-C again cuts its power")
	// The second Ctrl-C is caught as well: it must not leave the machine's files behind.
	again, stop := signal.NotifyContext(context.WithoutCancel(ctx), os.Interrupt, syscall.SIGTERM)
	defer stop()
	off, cancelOff := context.WithTimeout(again, powerOffTime)
	defer cancelOff()
	// A node that still boots does not hear the button, so it is pressed until the machine is off.
	for off.Err() == nil {
		if err := vm.PowerButton(off); err != nil {
			break
		}
		heard, cancelHeard := context.WithTimeout(off, pressEvery)
		err := vm.Wait(heard)
		cancelHeard()
		if err == nil {
			return nil
		}
	}
	if again.Err() == nil {
		fmt.Fprintf(stderr, "kingpost vm: the node did not power off within %v; cutting its power\n", powerOffTime)
	}
	return vm.Quit(context.WithoutCancel(ctx))
}

// parseSize reads a size in bytes, "8GiB", "512MiB" or a plain number.
func parseSize(s string) (int64, error) {
	number, shift := s, 0
	for unit, n := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40} {
		if rest, ok := strings.CutSuffix(s, unit); ok {
			number, shift = rest, n
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n <= 0 || n > (1<<62)>>shift {
		return 0, fmt.Errorf("the size %q is not a number of KiB, MiB, GiB or TiB, such as 8GiB", s)
	}
	return n << shift, nil
}
