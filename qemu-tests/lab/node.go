package lab

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/goccy/go-yaml"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/nodevm"
	"kingpost/internal/qemu"
)

// Limits of waits. They are for what has gone wrong, never a measure of speed: an emulated machine on a busy one is slow.
const (
	BootTime  = 5 * time.Minute
	RaiseTime = 15 * time.Minute
	StepTime  = 5 * time.Minute
)

// Spec is a node to boot.
type Spec struct {
	Name string // its hostname too; "alpha" by default
	// Config is node.yaml. Nil: hostname and the lab's claim.
	Config *mesh.NodeConfig
	// Disk is a raw disk that is there already, which the node takes over; DiskSize and Config do not count then.
	Disk   string
	Format string // of Disk: "raw" (also ""), or another one of QEMU's
	// SectorSize is that of the node's disk, in bytes; 0 is 512.
	SectorSize int
	// Base is a raw disk that must not change: the node runs on an overlay of it.
	Base     string
	DiskSize int64 // bytes; 0 is 4 GiB
	UEFI     bool  // through firmware and boot loader; else kernel and initrd are started directly
	// Boot replaces kernel, initrd and command line of a direct start.
	Boot   *nodevm.Boot
	Memory int    // MiB; 0 is 1024
	RTC    string // see qemu.Config
	Record bool   // every write, see Node.Log
	NICs   []qemu.NIC
	// Forwards are ports of the node that this machine reaches beside the API's; see qemu.VM.Port.
	Forwards []int
	// MoreDisks come behind the node's own.
	MoreDisks []qemu.Disk
	// NoScreen and NoSerial leave a console out.
	NoScreen, NoSerial bool
	// Open lets the node reach this machine's loopback address, as 10.0.2.2, and nothing is asked of it to reach more.
	Open  bool
	Extra []string // added to QEMU's command line
}

// Node is a booted node.
type Node struct {
	*qemu.VM
	Spec
	Name string
	Key  string // fingerprint of the node's key, from its console
	Addr string // of its API, on this machine
	// Path is its disk, and Log the recording of its writes, where there is one.
	Path, Log string

	lab  *Lab
	dir  string
	keep bool // Path belongs to somebody else

	mu     sync.Mutex
	creds  *tlsid.Credentials
	client *hostapi.Client
}

// Boot boots a node and returns when it has said who it is and its API answers. The machine's network reaches nothing,
// and nothing reaches it but the operator's port.
func (l *Lab) Boot(ctx context.Context, s Spec) (*Node, error) {
	n, err := l.Start(ctx, s)
	if err != nil {
		return n, err
	}
	return n, n.WaitUp(ctx, 0)
}

// Start starts a node and does not wait for anything. Where an error comes with a node, its console can still be read.
func (l *Lab) Start(ctx context.Context, s Spec) (_ *Node, err error) {
	if s.Name == "" {
		s.Name = "alpha"
	}
	dir, err := l.Dir(s.Name)
	if err != nil {
		return nil, err
	}
	n := &Node{Spec: s, Name: s.Name, lab: l, dir: dir}
	defer func() {
		if err != nil {
			n.Discard()
		}
	}()
	l.mu.Lock()
	l.nodes[n] = true
	l.mu.Unlock()
	disk := qemu.Disk{Format: "raw", Unsafe: true}
	switch {
	case s.Disk != "":
		n.Path, n.keep = s.Disk, true
		if s.Format != "" {
			disk.Format = s.Format
		}
	case s.Base != "":
		n.Path, disk.Format = filepath.Join(dir, "disk.qcow2"), "qcow2"
		err = qemu.Overlay(ctx, n.Path, s.Base, "raw", 0)
	default:
		n.Path = filepath.Join(dir, "disk.img")
		err = l.NewDisk(ctx, n.Path, s)
	}
	if err != nil {
		return nil, err
	}
	disk.Path, disk.SectorSize = n.Path, s.SectorSize
	if s.Record {
		n.Log = filepath.Join(dir, "writes")
		disk.Log = n.Log
	}
	c := qemu.Config{Name: s.Name, Dir: dir, Accel: accel(), Memory: s.Memory, RTC: s.RTC, Disks: []qemu.Disk{disk}, Extra: s.Extra}
	forwards := []qemu.Forward{{Guest: mesh.PortAPI}}
	for _, port := range s.Forwards {
		forwards = append(forwards, qemu.Forward{Guest: port})
	}
	c.Disks = append(c.Disks, s.MoreDisks...)
	c.NoScreen, c.NoSerial = s.NoScreen, s.NoSerial
	c.NICs = append([]qemu.NIC{{User: &qemu.User{Restrict: !s.Open, Forwards: forwards}}}, s.NICs...)
	if s.UEFI {
		if c.Firmware, err = qemu.FindFirmware("amd64"); err != nil {
			return nil, err
		}
	} else {
		b := l.direct
		if s.Boot != nil {
			b = *s.Boot
		}
		c.Kernel, c.Initrd, c.Append = b.Kernel, b.Initrd, b.Cmdline
	}
	if n.VM, err = qemu.Start(ctx, c, nil); err != nil {
		return nil, err
	}
	port, err := n.Port(ctx, mesh.PortAPI)
	if err != nil {
		return nil, err
	}
	n.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	return n, nil
}

// accel is TCG unless KINGPOST_ACCEL says otherwise, so that every machine tests the same.
func accel() string {
	if a := os.Getenv("KINGPOST_ACCEL"); a != "" {
		return a
	}
	return "tcg"
}

// NewDisk makes the disk that a node of this spec boots from at first.
func (l *Lab) NewDisk(ctx context.Context, path string, s Spec) error {
	config := s.Config
	if config == nil {
		config = &mesh.NodeConfig{Hostname: s.Name, Claim: l.Claim}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return fmt.Errorf("node.yaml: %w", err)
	}
	size := s.DiskSize
	if size == 0 {
		size = 4 << 30
	}
	return nodevm.Disk(ctx, path, l.Image, size, text, l.taken)
}

// WaitUp waits until the node has said who it is, since m, and its API answers.
func (n *Node) WaitUp(ctx context.Context, m qemu.Mark) error {
	ctx, cancel := context.WithTimeoutCause(ctx, BootTime, fmt.Errorf("node %s was not up within %v", n.Name, BootTime))
	defer cancel()
	name, key, err := nodevm.WaitIdentity(ctx, n.Serial, m)
	if err != nil {
		return err
	}
	n.mu.Lock()
	if n.Key != key { // the client pins it
		n.client = nil
	}
	n.Name, n.Key = name, key
	n.mu.Unlock()
	if err := nodevm.Listens(ctx, n.Addr); err != nil {
		return err
	}
	return Until(ctx, BootTime, func(ctx context.Context) error { return n.Client().Ping(ctx) })
}

// WaitUpBlind is WaitUp for a node that has no serial line: its key is whatever it shows.
func (n *Node) WaitUpBlind(ctx context.Context) error {
	return Until(ctx, BootTime, func(ctx context.Context) error {
		d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}
		ask, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		c, err := d.DialContext(ask, "tcp", n.Addr)
		if err != nil {
			return err
		}
		key := tlsid.FingerprintOf(c.(*tls.Conn).ConnectionState().PeerCertificates[0])
		c.Close()
		n.mu.Lock()
		if n.Key != key {
			n.Key, n.client = key, nil
		}
		n.mu.Unlock()
		return n.Client().Ping(ctx)
	})
}

// Client is a client of the node's API: with the operator's certificate once there is one (see SetCredentials), with
// the claim key before.
func (n *Node) Client() *hostapi.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.client == nil {
		o := hostapi.Options{NodeKey: n.Key, ConnectTimeout: time.Minute}
		if n.creds != nil {
			o.Credentials = tlsid.Fixed(n.creds)
		} else {
			cert, err := tlsid.SelfSigned(n.lab.Operator, "operator")
			if err != nil {
				panic(err) // a key that we made ourselves signs
			}
			o.Key = &cert
		}
		c, err := hostapi.Dial(n.Addr, o)
		if err != nil {
			panic(err) // an address that we made ourselves
		}
		n.client = c
	}
	return n.client
}

// ClientWith is a client that shows another key's self-signed certificate.
func (n *Node) ClientWith(cert tls.Certificate) (*hostapi.Client, error) {
	return hostapi.Dial(n.Addr, hostapi.Options{NodeKey: n.Key, Key: &cert, ConnectTimeout: time.Minute})
}

// SetCredentials makes Client show the operator's certificate from a raise.
func (n *Node) SetCredentials(certificate, ca string) error {
	c, err := tlsid.Parse([]byte(certificate), tlsid.MarshalPrivateKey(n.lab.Operator), []byte(ca))
	if err != nil {
		return fmt.Errorf("the operator's certificate of the raise: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.creds, n.client = c, nil
	return nil
}

// ActAs makes the node's client the operator that another node's client is: of the same node, booted again.
func (n *Node) ActAs(other *Node) {
	other.mu.Lock()
	creds := other.creds
	other.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.creds, n.client = creds, nil
}

// PowerOff powers the node off in order.
func (n *Node) PowerOff(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, StepTime, fmt.Errorf("node %s did not power off within %v", n.Name, StepTime))
	defer cancel()
	if err := n.Client().Power(ctx, "poweroff"); err != nil {
		return err
	}
	return n.Wait(ctx)
}

// Discard ends the node's machine and removes its files. It may be called often.
func (n *Node) Discard() {
	if n.VM != nil {
		n.Kill()
	}
	n.mu.Lock()
	if n.client != nil {
		n.client.Close()
	}
	n.mu.Unlock()
	os.RemoveAll(n.dir)
	n.lab.mu.Lock()
	delete(n.lab.nodes, n)
	n.lab.mu.Unlock()
}

// Keep saves what helps to understand a failure into a folder named name below Artefacts: the console's text, a picture
// of the screen while the machine runs, and what the node says of itself. It returns the folder.
func (n *Node) Keep(name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	dir := filepath.Join(n.lab.Artefacts, unsafe.ReplaceAllString(name, "_"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	prefix := filepath.Join(dir, n.Name)
	err := os.WriteFile(prefix+".serial.log", []byte(n.Serial.Since(0)), 0o644)
	select {
	case <-n.Done():
		return dir, err
	default:
	}
	err = errors.Join(err, n.Screenshot(ctx, prefix+".png"))
	if n.Key != "" {
		n.keepAPI(ctx, prefix)
	}
	return dir, err
}

// keepAPI saves what the API says, as far as it answers.
func (n *Node) keepAPI(ctx context.Context, prefix string) {
	c := n.Client()
	save := func(name string, v any, err error) {
		if err != nil {
			v = err.Error()
		}
		os.WriteFile(prefix+"."+name+".json", []byte(JSON(v)+"\n"), 0o644)
	}
	status, err := c.Status(ctx)
	save("status", status, err)
	declaration, err := c.Declaration(ctx)
	save("declaration", declaration, err)
	raise, err := c.Raise(ctx)
	save("raise", raise, err)
	node, err := c.Node(ctx)
	save("node", node, err)
	if status == nil {
		return
	}
	for _, r := range status.Resources {
		if r.Type != mesh.KindProcess && r.Type != mesh.KindContainer {
			continue
		}
		if text, err := n.Logs(ctx, r.Key, 64<<10); err == nil {
			os.WriteFile(prefix+"."+unsafe.ReplaceAllString(r.Key, "_")+".log", []byte(text), 0o644)
		}
	}
}

// unsafe matches what does not go into a file's name.
var unsafe = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
