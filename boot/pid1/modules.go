package pid1

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kingpost/internal/kmod"
	"kingpost/internal/mesh"
)

// modulesLoad names the modules that are loaded at every start, one a line.
const modulesLoad = "/usr/share/kingpost/modules-load"

// modules loads kernel modules of the root.
type modules struct {
	p *pid1
	l *kmod.Loader
}

func newModules(p *pid1) *modules {
	m := &modules{p: p}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		p.warn("kernel modules: %v", err)
		return m
	}
	l, err := kmod.NewLoader(os.DirFS(mesh.PathModules + "/" + unix.ByteSliceToString(u.Release[:])))
	if err != nil {
		p.warn("kernel modules: %v", err)
		return m
	}
	m.l = l
	return m
}

// forESP are the modules with which an ESP is mounted: FAT, and the character sets of its names.
var forESP = []string{"vfat", "nls_cp437", "nls_ascii"}

// now loads modules that the boot cannot go on without.
func (m *modules) now(ctx context.Context, names ...string) {
	if m.l == nil {
		return
	}
	if err := m.l.Load(ctx, names...); err != nil {
		m.p.warn("kernel modules: %v", err)
	}
}

// listed loads what the release's list names. What the host needs for containers and networks it loads itself, when it
// needs it.
func (m *modules) listed(ctx context.Context) {
	b, err := os.ReadFile(modulesLoad)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.p.warn("kernel modules: %v", err)
		}
		return
	}
	if err := m.l.Load(ctx, strings.Fields(string(b))...); err != nil {
		m.p.warn("kernel modules: %v", err)
	}
}

// othersAfter is how long all but the network's drivers wait for the first host to be ready: on a slow machine loading
// them at the same time would cost its first answer a second.
const othersAfter = 15 * time.Second

// devicesAfter is how long they wait after that: then it has its addresses, which on a slow machine is another second.
const devicesAfter = 2 * time.Second

// coldplug loads what the boot itself did not need: a module for every network card at once, since the host waits for
// them; once hostReady is closed what the release lists, and a module for every other device.
func (m *modules) coldplug(ctx context.Context, hostReady <-chan struct{}) {
	if m.l == nil {
		return
	}
	for _, alias := range networkCards("/sys/bus") {
		if err := m.l.Load(ctx, alias); err != nil {
			m.p.log.WithError(err).Info("a network card has no driver yet")
		}
	}
	select {
	case <-ctx.Done():
		return
	case <-hostReady:
		select {
		case <-ctx.Done():
			return
		case <-time.After(devicesAfter):
		}
	case <-time.After(othersAfter):
	}
	m.listed(ctx)
	names, err := m.l.LoadByModalias(ctx, os.DirFS("/sys"))
	if err != nil {
		// One device whose driver does not load is not worth a line on the console of every boot.
		m.p.log.WithError(err).Info("drivers that did not load")
	}
	m.p.log.WithField("modules", strings.Join(names, " ")).Info("devices have their drivers")
	m.soften(ctx)
}

// networkCards returns the modaliases of network cards on PCI and virtio; what hangs on other buses comes with the rest.
func networkCards(bus string) []string {
	var out []string
	for _, b := range []struct{ file, prefix string }{
		{"pci/devices/*/class", "0x02"},                   // PCI Code and ID Assignment: network controllers
		{"virtio/devices/*/modalias", "virtio:d00000001"}, // virtio 1.2, section 5: device 1
	} {
		files, err := filepath.Glob(filepath.Join(bus, b.file))
		if err != nil {
			continue
		}
		for _, f := range files {
			what, err := os.ReadFile(f)
			if err != nil || !strings.HasPrefix(string(what), b.prefix) {
				continue
			}
			if a, err := os.ReadFile(filepath.Join(filepath.Dir(f), "modalias")); err == nil {
				out = append(out, strings.TrimSpace(string(a)))
			}
		}
	}
	return out
}
