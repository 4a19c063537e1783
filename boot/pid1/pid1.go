// Package pid1 is the second stage of a boot and what stays of it: the node's PID 1. It mounts what a node needs, brings up
// the data partition, reaps, runs the launcher, shows the console, feeds the watchdog, and stops the machine in order.
//
// It starts one program, the host, and decides nothing about workloads. It fails only where there is nothing to go on
// with; everything else is a warning in BootInfo. Start with Main; there is one file for each thing it looks after.
package pid1

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"kingpost/boot/console"
	"kingpost/boot/initrd"
	"kingpost/boot/reaper"
	"kingpost/boot/timeline"
	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// stateDir is PID 1's own folder on the data partition.
const stateDir = mesh.PathState + "/launcher"

// maxExits bounds the exit records that wait for a host.
const maxExits = 4096

// pid1 is what PID 1 knows.
type pid1 struct {
	times   *timeline.Timeline
	console *console.Console
	log     *logrus.Logger
	reaper  *reaper.Reaper
	host    *hostRunner
	dog     watchdog
	vitals  vitals
	debug   bool // "kingpost.debug" on the command line: what only goes to the log goes to the console, too

	mu   sync.Mutex
	info mesh.BootInfo

	wake chan struct{} // lets the console look again
}

// pathTimes keeps the phases of this boot, for people and benchmarks.
const pathTimes = mesh.PathRun + "/boot-times.json"

// Main runs PID 1 in the root that the initrd stage has found. It does not return: it ends with the machine.
func Main(b initrd.Booted) {
	p := &pid1{times: b.Times, console: b.Console, info: b.Info, wake: make(chan struct{}, 1)}
	// The heap is a few hundred kilobytes; collecting it earlier keeps what the node has for its workloads.
	debug.SetGCPercent(50)
	p.log = newLog(p.console, mesh.PathRun+"/init.log")
	p.run()
}

func (p *pid1) run() {
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGUSR2, unix.SIGPWR)
	signal.Ignore(unix.SIGHUP, unix.SIGUSR1, unix.SIGPIPE)
	// Ctrl-Alt-Del comes as SIGINT from now on, instead of resetting the machine.
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_CAD_OFF); err != nil {
		p.warn("Ctrl-Alt-Del resets the machine at once: %v", err)
	}
	if line, err := os.ReadFile("/proc/cmdline"); err == nil {
		for _, w := range strings.Fields(string(line)) {
			p.debug = p.debug || w == "kingpost.debug"
		}
		if p.debug {
			p.log.AddHook(consoleHook{p.console, []logrus.Level{logrus.InfoLevel}})
		}
	}
	p.release()

	ctx := context.Background()
	background, stop := context.WithCancel(ctx)
	defer stop()
	r, err := reaper.New(mesh.PathExits, maxExits, p.log)
	if err != nil {
		// Without records the host cannot learn how its workloads ended, but they run.
		p.warn("exit records: %v", err)
	}
	p.reaper = r
	p.vitals.begin()
	r.Beat = p.vitals.reaper.beat
	go r.Run(background, sigchld)

	p.mounts()
	var wg sync.WaitGroup
	mods := newModules(p)
	wg.Go(p.data)
	mods.now(background, forESP...)
	p.esp()
	wg.Wait()
	p.times.Mark("mounts")
	p.clock()
	p.writeInfo()
	p.settings()

	p.host = newHostRunner(p)
	launcherCtx, stopLauncher := context.WithCancel(background)
	launched := make(chan struct{})
	go func() {
		defer close(launched)
		p.launch(launcherCtx)
	}()
	p.times.Mark("start")
	// The devices that the initrd did not need come while the host starts, its network first.
	go p.guard("drivers", func() { mods.coldplug(background, p.host.firstReady) })
	go p.guard("console", func() {
		p.console.Follow(background, console.Host(mesh.PathHostSocket, 10*time.Second), p.wake)
	})
	buttons := make(chan string, 1)
	go p.guard("buttons", func() { watchButtons(background, buttons, p.log) })

	action := p.loop(signals, buttons)
	stopLauncher()
	<-launched
	p.shutdown(action)
}

// loop is what PID 1 does all day. It returns how the machine is to be stopped.
func (p *pid1) loop(signals <-chan os.Signal, buttons <-chan string) string {
	feed := time.NewTicker(watchdogFeed)
	clock := time.NewTicker(clockEvery)
	var giveUp <-chan time.Time
	wanted := ""
	ask := func(action, why string) {
		if giveUp != nil {
			return
		}
		p.console.Line("%s: %s", why, action)
		wanted = action
		giveUp = time.After(0)
		if p.host.isReady() {
			giveUp = time.After(askPatience)
			go p.askHost(action)
		}
	}
	for {
		select {
		case s := <-signals:
			switch s {
			case unix.SIGTERM:
				return actionReboot
			case unix.SIGUSR2:
				return actionPowerOff
			case unix.SIGINT:
				ask(actionReboot, "Ctrl-Alt-Del was pressed")
			case unix.SIGPWR:
				ask(actionPowerOff, "the power fails")
			}
		case <-buttons:
			ask(actionPowerOff, "the power button was pressed")
		case <-giveUp:
			return wanted
		case <-feed.C:
			if why := p.vitals.stalled(); why != "" {
				p.starve(why)
				continue
			}
			p.dog.feed(p.log)
		case <-clock.C:
			saveClock(time.Now(), p.log)
		}
	}
}

// guard runs what the node can live without: a panic in it must not become one of the kernel, which ends every workload.
func (p *pid1) guard(what string, run func()) {
	defer func() {
		if r := recover(); r != nil {
			p.log.WithField("stack", string(debug.Stack())).Errorf("%s stopped by a fault in mesh-init: %v; report it, and reboot to get it back", what, r)
		}
	}()
	run()
}

// release fills in what the release says about itself.
func (p *pid1) release() {
	b, err := os.ReadFile(mesh.PathRelease)
	if err == nil {
		var ri mesh.ReleaseInfo
		if err = json.Unmarshal(b, &ri); err == nil {
			p.info.Release = ri
		}
	}
	if err != nil {
		p.warn("the release's own description: %v", err)
	}
}

// warn is for what a person should know and the node can live with.
func (p *pid1) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	p.mu.Lock()
	p.info.Warnings = append(p.info.Warnings, text)
	p.mu.Unlock()
	p.log.Warn(text)
}

// writeInfo puts BootInfo where the host reads it.
func (p *pid1) writeInfo() {
	p.mu.Lock()
	b, err := json.Marshal(p.info)
	p.mu.Unlock()
	if err == nil {
		err = os.MkdirAll(mesh.PathRun, 0o755)
	}
	if err == nil {
		err = atomicfile.Write(mesh.PathBoot, append(b, '\n'), 0o644)
	}
	if err != nil {
		p.log.WithError(err).Error("write what was found out while booting")
	}
}

// booted is told by the first host that is ready.
func (p *pid1) booted() {
	p.times.Mark("host")
	if err := p.times.Save(pathTimes); err != nil {
		p.log.WithError(err).Warn("save the boot's phases")
	}
	p.console.Line("booted in %s", p.times)
	// What the boot needed and the node does not.
	debug.FreeOSMemory()
}

func (p *pid1) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// wallClock is the launcher's clock outside tests.
type wallClock struct{}

func (wallClock) Now() time.Time                         { return time.Now() }
func (wallClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
