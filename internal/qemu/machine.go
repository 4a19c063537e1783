// Package qemu runs virtual machines: it builds QEMU's command line, starts it, captures the serial console, talks QMP
// and ends it, also when the program that started it dies.
//
// It knows nothing of Kingpost, of what a guest is or does, and it never touches a disk's content. It needs no
// privilege: networks are QEMU's own user network or unix sockets. Start with Config, then Start.
package qemu

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Config is a machine.
type Config struct {
	Name string // for people, in QEMU's process list and in errors
	// Dir holds the machine's sockets, its firmware variables and its logs. It must exist and stay until the machine has
	// ended. Paths of unix sockets have at most 107 bytes, so keep it short.
	Dir string

	Arch   string // "amd64" (also "") or "arm64"
	Memory int    // MiB; 0 is 1024
	CPUs   int    // 0 is 1; more make an emulated guest slower, not faster
	// Accel is "kvm", "tcg", or "" for KVM where this user may use it, else TCG.
	Accel string

	// Firmware boots through UEFI. Nil needs Kernel.
	Firmware *Firmware
	// Kernel, Initrd and Append start a kernel directly.
	Kernel, Initrd, Append string

	Disks []Disk
	NICs  []NIC
	// RTC is where the hardware clock stands at power-on, "2006-01-02T15:04:05" or "2006-01-02" in UTC. Empty: now.
	RTC string
	// NoScreen leaves the graphics card out, NoSerial the serial port: VM.Serial then stays empty.
	NoScreen, NoSerial bool
	// NoReboot ends QEMU where the guest reboots.
	NoReboot bool
	// Extra is added to the command line as it is.
	Extra []string
}

// Disk is a virtio disk.
type Disk struct {
	Path     string
	Format   string // "raw" (also ""), or a name of QEMU's: "qcow2", "vmdk"
	Serial   string // at most 20 bytes
	ReadOnly bool
	// Log is a file into which every write and flush of the guest is recorded, in the format that package writelog reads.
	Log string
	// Unsafe skips the flushes of this machine, not those that Log records. For disks that nobody needs after a crash of
	// this machine, which is not a crash of the guest.
	Unsafe     bool
	SectorSize int // bytes; 0 is 512
}

// NIC is a virtio network card. One of User and Socket is set.
type NIC struct {
	MAC  string // empty: derived from its number
	User *User
	// Socket is the path of a unix socket that speaks QEMU's stream protocol, as package hub does.
	Socket string
	// ROM false takes the card's own boot ROM away, so that firmware boots by its own drivers or not at all.
	ROM bool
}

// User is QEMU's user network: DHCP, NAT, and ports of this machine forwarded to the guest.
type User struct {
	// Restrict cuts the guest off from everything but what Forwards lets in.
	Restrict bool
	Forwards []Forward
}

// Forward makes a TCP port of the guest reachable on this machine's loopback address.
type Forward struct {
	Host  int // 0: QEMU takes a free one, VM.Port tells which
	Guest int
}

// ParseForward reads "HOST:GUEST" or "GUEST".
func ParseForward(s string) (Forward, error) {
	host, guest, two := strings.Cut(s, ":")
	if !two {
		host, guest = "0", s
	}
	h, err1 := strconv.ParseUint(host, 10, 16)
	g, err2 := strconv.ParseUint(guest, 10, 16)
	if err1 != nil || err2 != nil || g == 0 {
		return Forward{}, fmt.Errorf("forward %q: the form is HOSTPORT:GUESTPORT or GUESTPORT, with ports from 1 to 65535", s)
	}
	return Forward{Host: int(h), Guest: int(g)}, nil
}

// Check says what no machine can be: an unknown architecture or accelerator, or memory and CPUs out of bounds.
func (c *Config) Check() error {
	m, ok := machines[c.arch()]
	switch {
	case !ok:
		return fmt.Errorf("no virtual machine is known for the architecture %.40q; amd64 and arm64 are", c.Arch)
	case c.Accel != "" && c.Accel != "kvm" && c.Accel != "tcg":
		return fmt.Errorf("the accelerator %.40q is unknown; kvm and tcg are known", c.Accel)
	case c.Accel == "kvm" && c.arch() != hostArch():
		return fmt.Errorf("KVM runs machines of this machine's own architecture, %s, and not of %s; tcg emulates one", hostArch(), c.arch())
	case c.Memory != 0 && (c.Memory < minMemory || c.Memory > maxMemory):
		return fmt.Errorf("%d MiB of memory are not from %d to %d", c.Memory, minMemory, maxMemory)
	case c.CPUs < 0 || c.CPUs > m.maxCPUs:
		return fmt.Errorf("%d CPUs are not from 1 to %d", c.CPUs, m.maxCPUs)
	}
	return nil
}

// Bounds of a machine's memory in MiB: below the one no firmware starts, above the other QEMU has no addresses.
const (
	minMemory = 64
	maxMemory = 1 << 20
)

// machine is what differs between architectures.
type machine struct {
	program, machine, console string
	emulated                  string // what the CPU model gets where QEMU emulates it: features that are slow then
	maxCPUs                   int
}

var machines = map[string]machine{
	// Without the SATA controller that q35 brings: it has no disk, and loading its driver is half a second of each boot.
	// The kernel takes "erms" and "fsrm" for a promise that copying and clearing byte by byte is the fastest way, and an
	// emulator does go byte by byte: without them it clears a page in an eighth of the steps.
	// A carry-less product is a loop of its own in an emulator: AES-GCM with it carries 10 MB/s, what Go takes without it 30.
	"amd64": {"qemu-system-x86_64", "q35,sata=off", "ttyS0", ",-erms,-fsrm,-pclmulqdq", 255},
	// QEMU's own pointer authentication algorithm is far too slow in emulation.
	// Its interrupt controller, GICv2, knows eight CPUs.
	"arm64": {"qemu-system-aarch64", "virt", "ttyAMA0", ",pauth-impdef=on", 8},
}

func (c *Config) arch() string {
	if c.Arch == "" {
		return "amd64"
	}
	return c.Arch
}

// accel resolves Accel.
func (c *Config) accel() string {
	if c.Accel != "" {
		return c.Accel
	}
	if c.arch() == hostArch() {
		if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
			f.Close()
			return "kvm"
		}
	}
	return "tcg"
}

// qmpSocket is where QEMU listens for QMP.
func (c *Config) qmpSocket() string { return filepath.Join(c.Dir, "qmp") }

// Args is QEMU's program and command line. vars is the machine's own copy of the firmware's variables.
func (c *Config) args(vars string) (string, []string, error) {
	if err := c.Check(); err != nil {
		return "", nil, fmt.Errorf("machine %s: %w", c.Name, err)
	}
	m := machines[c.arch()]
	if c.Firmware == nil && c.Kernel == "" {
		return "", nil, fmt.Errorf("machine %s has neither firmware nor a kernel to start", c.Name)
	}
	if len(c.qmpSocket()) > 107 {
		return "", nil, fmt.Errorf("machine %s: the path %s is too long for a unix socket; use a shorter folder (TMPDIR)", c.Name, c.qmpSocket())
	}
	accel, cpu := c.accel(), "max"
	if accel == "tcg" {
		cpu += m.emulated
	}
	a := []string{
		"-name", c.Name, "-no-user-config", "-nodefaults", "-display", "none",
		"-machine", m.machine, "-accel", accel, "-cpu", cpu,
		"-m", strconv.Itoa(or(c.Memory, 1024)), "-smp", strconv.Itoa(or(c.CPUs, 1)),
		"-qmp", "unix:" + escape(c.qmpSocket()) + ",server=on,wait=off",
		"-device", "virtio-rng-pci",
	}
	if c.NoSerial {
		a = append(a, "-serial", "none")
	} else {
		a = append(a, "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console")
	}
	switch {
	case c.NoScreen:
		a = append(a, "-vga", "none")
	case c.arch() == "amd64":
		a = append(a, "-vga", "std")
	default:
		a = append(a, "-device", "virtio-gpu-pci")
	}
	if c.RTC != "" {
		a = append(a, "-rtc", "base="+c.RTC)
	}
	if c.NoReboot {
		a = append(a, "-no-reboot")
	}
	if c.Firmware != nil {
		a = append(a,
			"-drive", "if=pflash,unit=0,format=raw,readonly=on,file="+escape(c.Firmware.Code),
			"-drive", "if=pflash,unit=1,format=raw,file="+escape(vars))
		if c.Firmware.SMM {
			a = append(a, "-machine", "smm=on", "-global", "driver=cfi.pflash01,property=secure,value=on")
		}
	}
	if c.Kernel != "" {
		a = append(a, "-kernel", c.Kernel)
		if c.Initrd != "" {
			a = append(a, "-initrd", c.Initrd)
		}
		if c.Append != "" {
			a = append(a, "-append", c.Append)
		}
	}
	for i, d := range c.Disks {
		a = append(a, d.args(i)...)
	}
	for i, n := range c.NICs {
		s, err := n.args(i)
		if err != nil {
			return "", nil, fmt.Errorf("machine %s: %w", c.Name, err)
		}
		a = append(a, s...)
	}
	return m.program, append(a, c.Extra...), nil
}

func (d Disk) args(i int) []string {
	format := d.Format
	if format == "" {
		format = "raw"
	}
	common := fmt.Sprintf(",read-only=%s,discard=unmap", onOff(d.ReadOnly))
	if d.Unsafe {
		common += ",cache.no-flush=on"
	}
	a := []string{
		"-blockdev", fmt.Sprintf("driver=file,node-name=file%d,filename=%s%s", i, escape(d.Path), common),
		"-blockdev", fmt.Sprintf("driver=%s,node-name=image%d,file=file%d%s", format, i, i, common),
	}
	node := fmt.Sprintf("image%d", i)
	if d.Log != "" {
		a = append(a,
			"-blockdev", fmt.Sprintf("driver=file,node-name=log%d,filename=%s,cache.no-flush=on", i, escape(d.Log)),
			"-blockdev", fmt.Sprintf("driver=blklogwrites,node-name=logged%d,file=%s,log=log%d", i, node, i))
		node = fmt.Sprintf("logged%d", i)
	}
	// From 1: with -kernel QEMU has an option ROM of its own at 0.
	dev := fmt.Sprintf("virtio-blk-pci,drive=%s,bootindex=%d", node, i+1)
	if d.Log != "" {
		// The filter writes a request to its log with one buffer more than it came in. QEMU merges what a guest writes in
		// sequence up to the most buffers that one call takes (IOV_MAX), so the largest would fail, and the guest see an
		// I/O error and the log a hole. And up to QEMU 8.2 a write of zeroes that meets another request corrupts the log.
		dev += ",request-merging=off,discard=off,write-zeroes=off"
	}
	if d.Serial != "" {
		dev += ",serial=" + escape(d.Serial)
	}
	if d.SectorSize != 0 {
		dev += fmt.Sprintf(",logical_block_size=%d,physical_block_size=%d", d.SectorSize, d.SectorSize)
	}
	return append(a, "-device", dev)
}

func (n NIC) args(i int) ([]string, error) {
	mac := n.MAC
	if mac == "" {
		mac = fmt.Sprintf("52:54:00:4b:50:%02x", i+1)
	}
	if _, err := net.ParseMAC(mac); err != nil {
		return nil, fmt.Errorf("network card %d: %w", i, err)
	}
	var backend string
	switch {
	case n.Socket != "":
		backend = fmt.Sprintf("stream,id=net%d,server=off,addr.type=unix,addr.path=%s", i, escape(n.Socket))
	case n.User != nil:
		backend = fmt.Sprintf("user,id=net%d,restrict=%s", i, onOff(n.User.Restrict))
		for _, f := range n.User.Forwards {
			backend += fmt.Sprintf(",hostfwd=tcp:127.0.0.1:%d-:%d", f.Host, f.Guest)
		}
	default:
		return nil, fmt.Errorf("network card %d is connected to nothing", i)
	}
	dev := fmt.Sprintf("virtio-net-pci,netdev=net%d,mac=%s", i, mac)
	if !n.ROM {
		dev += ",romfile="
	}
	return []string{"-netdev", backend, "-device", dev}, nil
}

// escape protects a value in QEMU's option syntax, where a comma separates and two are one.
func escape(s string) string { return strings.ReplaceAll(s, ",", ",,") }

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func or(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
