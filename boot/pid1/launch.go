package pid1

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"kingpost/boot/launcher"
	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// wordLimits changes the launcher's limits: "kingpost.launcher=ready=20s,healthy=10s,...", see launcher.ParseLimits. Under
// Secure Boot no outside command line counts.
const wordLimits = "kingpost.launcher="

// launch runs the launcher until ctx ends, then ends the host.
func (p *pid1) launch(ctx context.Context) {
	limits := p.limits()
	p.host.limits = limits
	path := stateDir + "/state.json"
	file := p.readLauncherState(path)
	unsaved := &sync.Once{}
	state := file.For(p.info.RootHash, limits)
	l := launcher.New(launcher.Launcher{
		Baked:  launcher.Host{Digest: launcher.BakedIn, Path: mesh.PathHost},
		Limits: limits,
		State:  state,
		Save: func() error {
			b, err := json.MarshalIndent(file, "", " ")
			if err != nil {
				return err
			}
			if err = atomicfile.Write(path, append(b, '\n'), 0o600); err != nil {
				unsaved.Do(func() {
					p.console.Line("error the launcher cannot keep its state, so failures of the host are not counted across a reboot: %v", err)
				})
				return err
			}
			unsaved = &sync.Once{}
			return nil
		},
		Verify: verify,
		Start: func(h launcher.Host) (launcher.Instance, error) {
			return p.host.start(h, state.FailedBefore(h))
		},
		Clock:    wallClock{},
		Random:   jitter(),
		Log:      p.log,
		Report:   func(s string) { p.console.Line("%s", s) },
		OnReady:  p.host.onReady,
		OnGone:   p.host.onGone,
		OnHalt:   p.onHalt,
		OnChange: p.publish,
		Beat:     p.vitals.launcher.beat,
	})
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		p.host.pass(ctx, l)
	}()
	l.Run(ctx)
	<-passed
	p.host.end()
}

// limits are the launcher's, as the command line may change them.
func (p *pid1) limits() launcher.Limits {
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return launcher.DefaultLimits
	}
	for _, w := range strings.Fields(string(line)) {
		v, ok := strings.CutPrefix(w, wordLimits)
		if !ok {
			continue
		}
		l, err := launcher.ParseLimits(v, launcher.DefaultLimits)
		if err != nil {
			p.warn("%s on the command line does not count: %v", strings.TrimSuffix(wordLimits, "="), err)
		}
		return l
	}
	return launcher.DefaultLimits
}

// readLauncherState reads the launcher's state. What cannot be read is set aside, and the launcher starts afresh.
func (p *pid1) readLauncherState(path string) *launcher.File {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &launcher.File{}
	}
	aside := path + ".bad"
	if err == nil {
		var f *launcher.File
		if f, err = launcher.ParseFile(b); err == nil {
			return f
		}
		if errors.Is(err, launcher.ErrNewer) {
			aside = path + ".newer"
		}
		if rerr := os.Rename(path, aside); rerr != nil {
			err = fmt.Errorf("%w; it cannot be set aside either: %w", err, rerr)
		}
	}
	p.warn("the launcher starts afresh, with the host of this release: %v; what was there is kept in %s", err, aside)
	return &launcher.File{}
}

// publish puts what the launcher knows where the host reads it.
func (p *pid1) publish(i mesh.LauncherInfo) {
	b, err := json.Marshal(i)
	if err == nil {
		err = atomicfile.Write(mesh.PathLauncher, append(b, '\n'), 0o644)
	}
	if err != nil {
		p.log.WithError(err).Warn("tell the host what the launcher knows")
	}
	p.look()
}
