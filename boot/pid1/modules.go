package pid1

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

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

// listed loads what the release's list names.
func (m *modules) listed(ctx context.Context) {
	if m.l == nil {
		return
	}
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

// coldplug loads a module for every device that there is.
func (m *modules) coldplug(ctx context.Context) {
	if m.l == nil {
		return
	}
	names, err := m.l.LoadByModalias(ctx, os.DirFS("/sys"))
	if err != nil {
		// One device whose driver does not load is not worth a line on the console of every boot.
		m.p.log.WithError(err).Info("drivers that did not load")
	}
	m.p.log.WithField("modules", strings.Join(names, " ")).Info("devices have their drivers")
}
