// Package nodevm makes a virtual machine of a Kingpost disk image: it copies the image, gives it a node.yaml and a size,
// finds kernel and initrd in it for a direct start, and reads from the console who the node is.
//
// It never writes to the image itself. `kingpost vm`, the end-to-end tests and the benchmarks share it; what is QEMU's
// own lives in package qemu. Start with Disk, then Direct and WaitIdentity.
package nodevm

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"kingpost/internal/gpt"
	"kingpost/internal/qemu"
	"kingpost/internal/release"
	"kingpost/internal/uki"
)

// Disk makes a node's disk at path from an image: a sparse copy of at least size bytes (the node grows its data partition
// into the space at its first boot), with config as node.yaml on its ESP, where config is not nil. now is the time of
// that file. The disk has its name only once it is whole: a copy that was killed is made anew.
func Disk(ctx context.Context, path, image string, size int64, config []byte, now time.Time) error {
	part := path + ".part"
	if err := qemu.Copy(ctx, part, image, size); err != nil {
		return err
	}
	if config != nil {
		if err := Configure(part, config, now); err != nil {
			os.Remove(part)
			return fmt.Errorf("write node.yaml to %s: %w", path, err)
		}
	}
	if err := os.Rename(part, path); err != nil {
		os.Remove(part)
		return fmt.Errorf("make the disk: %w", err)
	}
	return nil
}

// Configure writes node.yaml to the ESP of a raw disk, in place of the one that is there.
func Configure(path string, config []byte, now time.Time) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil {
		err = release.WriteNodeConfig(f, st.Size(), config, now)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// Boot is what a direct start needs: two files and the command line that its UKI carries.
type Boot struct {
	Kernel, Initrd, Cmdline string
	// UKISize is the size in bytes of the UKI that they came from.
	UKISize int64
}

// Direct takes kernel, initrd and command line out of the UKI of an image's release and puts the two files into dir. A
// machine started from them boots as under UEFI, without firmware, boot loader and stub.
func Direct(dir, image string) (Boot, error) {
	b, err := direct(dir, image)
	if err != nil {
		return b, fmt.Errorf("take kernel and initrd out of %s: %w", image, err)
	}
	return b, nil
}

func direct(dir, image string) (Boot, error) {
	f, err := os.Open(image)
	if err != nil {
		return Boot{}, err
	}
	defer f.Close()
	file, err := UKI(f)
	if err != nil {
		return Boot{}, err
	}
	img, err := uki.Read(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return Boot{}, err
	}
	b := Boot{Kernel: filepath.Join(dir, "kernel"), Initrd: filepath.Join(dir, "initrd"), UKISize: int64(len(file))}
	if b.Cmdline, err = img.Text(uki.Cmdline); err != nil {
		return Boot{}, err
	}
	b.Cmdline = strings.TrimSpace(b.Cmdline)
	for name, path := range map[string]string{uki.Linux: b.Kernel, uki.Initrd: b.Initrd} {
		section := img.Section(name)
		if section == nil {
			return Boot{}, fmt.Errorf("the UKI has no section %s", name)
		}
		if err := save(path, section); err != nil {
			return Boot{}, err
		}
	}
	return b, nil
}

// maxUKI bounds a UKI, in bytes; it is held in memory.
const maxUKI = 512 << 20

// UKI reads the UKI that a fresh image boots: the one that its entry other than rescue names.
func UKI(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	table, err := gpt.Read(f, st.Size(), 0)
	if err != nil {
		return nil, err
	}
	esp, err := release.OpenESP(f, table)
	if err != nil {
		return nil, err
	}
	entries, err := esp.List(release.ESPEntries)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := esp.ReadFile(release.ESPEntries+"/"+e.Name, 64<<10)
		if err != nil {
			return nil, err
		}
		entry, err := release.ParseBootEntry(e.Name, data)
		if err != nil {
			return nil, err
		}
		if entry.ID != "rescue" {
			return esp.ReadFile(strings.TrimPrefix(entry.EFI, "/"), maxUKI)
		}
	}
	return nil, fmt.Errorf("the ESP has no boot entry but rescue's")
}

func save(path string, r io.Reader) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, r); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// identity is the line by which a node says on its console who it is.
var identity = regexp.MustCompile(`kingpost: node (\S+) key (SHA256:[A-Za-z0-9+/]{43})`)

// listenEvery is how often Listens tries anew.
const listenEvery = 500 * time.Millisecond

// Listens waits until somebody speaks TLS at addr, a forwarded port of a node that is booting. QEMU's user network takes
// every connection at once and asks the guest afterwards: the question that comes before the guest has its address is
// lost, and repeated only after six seconds. So it does not wait for one connection, but opens another one meanwhile.
func Listens(ctx context.Context, addr string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tries sync.WaitGroup
	defer tries.Wait()
	defer cancel()
	up := make(chan struct{}, 1)
	tick := time.NewTicker(listenEvery)
	defer tick.Stop()
	for {
		tries.Go(func() {
			// Who it is does not matter here: nothing is said or believed.
			c, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", addr)
			if err != nil {
				return
			}
			c.Close()
			select {
			case up <- struct{}{}:
			default:
			}
		})
		select {
		case <-up:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// WaitIdentity waits until the node has said on its console who it is, since m.
func WaitIdentity(ctx context.Context, s *qemu.Serial, m qemu.Mark) (name, key string, err error) {
	match, err := s.Wait(ctx, m, identity)
	if err != nil {
		return "", "", err
	}
	return match[1], match[2], nil
}
