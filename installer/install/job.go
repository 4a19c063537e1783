package install

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/installer/diskwrite"
	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// Config is what a Job is made of.
type Config struct {
	// Install is the section of node.yaml that counts; nil for none. It is acted on without anybody asking.
	Install *mesh.InstallConfig
	// Busy says why nothing may be installed from this node, "" for no reason.
	Busy func() string
	// Machine looks at the machine's disks.
	Machine func(ctx context.Context) (Machine, error)
	// Medium opens what is installed from.
	Medium func() (*Medium, io.Closer, error)
	// Target opens a disk for writing, for this program alone.
	Target func(path string) (Target, error)
	// Firmware makes the firmware start the installed disk, and says what it did. Nil: there is no such firmware.
	Firmware func(r *Result, arch string) (string, error)
	// Power begins to stop the node: "reboot" or "poweroff".
	Power  func(action string) error
	Random io.Reader
	Now    func() time.Time
	Log    logrus.FieldLogger

	// Settle is how long the disks must stay the same before one is taken unattended: a disk that comes a moment later may
	// be one that matches, too. 0 is 6 seconds.
	Settle time.Duration
	// Again is when disks are looked at again where none was taken, and when a failed installation is tried again. 0 is
	// 15 seconds.
	Again time.Duration
}

// Target is a disk that was opened.
type Target interface {
	diskwrite.Target
	io.Closer
}

// Job is the installation of one node. Its methods may be called from many goroutines.
type Job struct {
	cfg   Config
	start chan order // of size 1
	tries int        // of an unattended installation; Run's alone

	mu       sync.Mutex
	status   hostapi.InstallStatus
	watchers map[chan struct{}]struct{}
}

// order is an installation that was decided on.
type order struct {
	plan hostapi.Disks
	cfg  mesh.InstallConfig
}

// maxTries bounds how often an unattended installation that fails is begun.
const maxTries = 3

// NewJob makes a Job; nothing happens until Run.
func NewJob(cfg Config) *Job {
	if cfg.Settle == 0 {
		cfg.Settle = 6 * time.Second
	}
	if cfg.Again == 0 {
		cfg.Again = 15 * time.Second
	}
	j := &Job{cfg: cfg, start: make(chan order, 1), watchers: map[chan struct{}]struct{}{}}
	j.status.State = hostapi.InstallNone
	if cfg.Install != nil {
		j.status.State, j.status.Reason = hostapi.InstallWaiting, "the disks are being looked at"
	}
	return j
}

// Run installs what node.yaml or a request asks for, until ctx ends.
func (j *Job) Run(ctx context.Context) error {
	seen := ""
	var since time.Time
	for {
		pause := time.Duration(-1)
		if j.pending() {
			names, err := j.disks(ctx)
			if now := j.cfg.Now(); err == nil && (names != seen || since.IsZero()) {
				seen, since = names, now
			}
			pause = time.Second
			if err == nil && j.cfg.Now().Sub(since) >= j.cfg.Settle {
				j.unattended(ctx)
				pause = j.cfg.Again
			}
		}
		var wait <-chan time.Time
		var timer *time.Timer
		if pause >= 0 && j.pending() {
			timer = time.NewTimer(pause)
			wait = timer.C
		}
		select {
		case <-ctx.Done():
		case o := <-j.start:
			j.install(ctx, o)
		case <-wait:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// pending reports whether node.yaml asks for an installation that can still come.
func (j *Job) pending() bool {
	if j.cfg.Install == nil {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch j.status.State {
	case hostapi.InstallWaiting, hostapi.InstallRefused:
		return true
	case hostapi.InstallFailed:
		return j.tries < maxTries
	}
	return false
}

// disks names the disks that there are.
func (j *Job) disks(ctx context.Context) (string, error) {
	m, err := j.cfg.Machine(ctx)
	if err != nil {
		j.set(func(s *hostapi.InstallStatus) { s.State, s.Reason = hostapi.InstallRefused, err.Error() })
		return "", err
	}
	var names []string
	for _, d := range m.Disks {
		names = append(names, fmt.Sprint(d.Path, d.Size, d.Serials, d.WWN))
	}
	slices.Sort(names)
	return strings.Join(names, "\n"), nil
}

// unattended decides by node.yaml alone.
func (j *Job) unattended(ctx context.Context) {
	if why := j.cfg.Busy(); why != "" {
		j.refuse(nil, why)
		return
	}
	m, closer, err := j.cfg.Medium()
	if err != nil {
		j.refuse(nil, fmt.Sprintf("nothing can be installed from the medium that the node booted from: %v", err))
		return
	}
	mark := m.Mark()
	closer.Close()
	plan, err := j.plan(ctx, j.cfg.Install)
	if err != nil {
		j.refuse(nil, err.Error())
		return
	}
	for _, d := range plan.Disks {
		k := d.Kingpost
		if k == nil || d.Booted || !(Mark{Medium: k.Medium, Root: k.Root, Config: k.Config}).By(mark) || k.Root == "" {
			continue
		}
		j.set(func(s *hostapi.InstallStatus) {
			*s = hostapi.InstallStatus{State: hostapi.InstallInstalled, Target: d.Path, Plan: &plan,
				Reason: fmt.Sprintf("%s of this machine is installed from this medium: remove the stick and restart; `kingpost install` installs once more", d.Path)}
		})
		return
	}
	if plan.Target == "" {
		j.refuse(&plan, plan.Reason.Text)
		return
	}
	if !j.claim() {
		return // somebody has asked for it meanwhile
	}
	j.tries++
	j.begin(plan, *j.cfg.Install)
	j.install(ctx, order{plan, *j.cfg.Install})
}

func (j *Job) plan(ctx context.Context, cfg *mesh.InstallConfig) (hostapi.Disks, error) {
	m, err := j.cfg.Machine(ctx)
	if err != nil {
		return hostapi.Disks{}, err
	}
	return Make(m, cfg)
}

func (j *Job) refuse(plan *hostapi.Disks, why string) {
	j.cfg.Log.WithField("reason", why).Warn("install: refused")
	j.set(func(s *hostapi.InstallStatus) {
		*s = hostapi.InstallStatus{State: hostapi.InstallRefused, Reason: why, Plan: plan}
	})
}

// claim makes the caller the one who installs.
func (j *Job) claim() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if s := j.status.State; s == hostapi.InstallRunning || s == hostapi.InstallDone {
		return false
	}
	j.status.State = hostapi.InstallRunning
	return true
}

func (j *Job) begin(plan hostapi.Disks, cfg mesh.InstallConfig) {
	j.set(func(s *hostapi.InstallStatus) {
		*s = hostapi.InstallStatus{State: hostapi.InstallRunning, Target: plan.Target, Plan: &plan, Then: then(&cfg), Started: j.cfg.Now()}
		for _, w := range plan.Warnings {
			s.Warnings = append(s.Warnings, w.Text)
		}
	})
}

// Start has the node install itself as req says, or plans it. A disk that is not the one that the caller has seen, and an
// installation that is under way, are an *hostapi.Error with mesh.CodeConflict.
func (j *Job) Start(ctx context.Context, req hostapi.InstallRequest) (hostapi.InstallStatus, error) {
	cfg := req.Install
	if cfg == nil {
		cfg = j.cfg.Install
	}
	if cfg == nil {
		return j.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "install: neither the request nor node.yaml says which disk; name one, as by its serial number")
	}
	if err := release.CheckInstall(cfg); err != nil {
		return j.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "install: %v", err)
	}
	if why := j.cfg.Busy(); why != "" && !req.DryRun {
		return j.Status(), apiError(http.StatusConflict, mesh.CodeConflict, "install: %s; nothing was changed", why)
	}
	plan, err := j.plan(ctx, cfg)
	if err != nil {
		return j.Status(), apiError(http.StatusBadRequest, mesh.CodeBadParams, "install: %v", err)
	}
	st := hostapi.InstallStatus{State: hostapi.InstallPlanned, Target: plan.Target, Plan: &plan, Then: then(cfg)}
	if plan.Target == "" {
		st.State, st.Reason = hostapi.InstallRefused, plan.Reason.Text
		return st, nil
	}
	if req.DryRun {
		return st, nil
	}
	if req.Target != "" && req.Target != plan.Target {
		return st, apiError(http.StatusConflict, mesh.CodeConflict, "install: the disk would be %s now and not %s: disks have changed places; nothing was changed", plan.Target, req.Target)
	}
	if !j.claim() {
		return j.Status(), apiError(http.StatusConflict, mesh.CodeConflict, "install: an installation is under way or done already")
	}
	j.begin(plan, *cfg)
	j.start <- order{plan, *cfg} // it has room: only one is running
	return j.Status(), nil
}

// install writes, and does what comes after.
func (j *Job) install(ctx context.Context, o order) {
	log := j.cfg.Log.WithField("disk", o.plan.Target)
	log.Warn("install: begins")
	res, arch, err := j.write(ctx, o)
	if err != nil {
		log.WithError(err).Error("install: failed")
		j.set(func(s *hostapi.InstallStatus) {
			s.State, s.Reason, s.Ended = hostapi.InstallFailed, err.Error(), j.cfg.Now()
		})
		return
	}
	firmware := "this machine's firmware keeps no boot entries that could be set; it finds the disk by itself"
	if j.cfg.Firmware != nil {
		if firmware, err = j.cfg.Firmware(res, arch); err != nil {
			// The disk can be started all the same, by the path that removable media have.
			log.WithError(err).Warn("install: the firmware's boot entries")
			firmware = fmt.Sprintf("the firmware's boot entries could not be set: %v", err)
		}
	}
	do := then(&o.cfg)
	next := map[string]string{mesh.ThenReboot: "; the node restarts from the disk", mesh.ThenPowerOff: "; the node switches itself off", mesh.ThenWait: ", and restart the node"}[do]
	j.set(func(s *hostapi.InstallStatus) {
		s.State, s.Reason, s.Firmware, s.Ended = hostapi.InstallDone, "remove the stick"+next, firmware, j.cfg.Now()
		s.DiskGUID = res.Table.DiskGUID.String()
	})
	log.WithField("then", do).Warn("install: done")
	if do == mesh.ThenWait {
		return
	}
	// Whoever follows sees the end.
	select {
	case <-time.After(watchEvery * 4):
	case <-ctx.Done():
		return
	}
	if err := j.cfg.Power(do); err != nil {
		log.WithError(err).Error("install: the node does not go down by itself")
	}
}

func (j *Job) write(ctx context.Context, o order) (*Result, string, error) {
	m, closer, err := j.cfg.Medium()
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", errMedium, err)
	}
	defer closer.Close()
	t, err := j.cfg.Target(o.plan.Target)
	if err != nil {
		return nil, "", err
	}
	defer t.Close()
	// The disk is held now: that it is still the one of the plan is asked once more.
	if err := j.same(ctx, o.plan); err != nil {
		return nil, "", err
	}
	res, err := Write(ctx, Input{Medium: m, Target: t, Partitions: o.plan.Partitions, Random: j.cfg.Random, Time: j.cfg.Now(),
		Progress: func(phase string, done, total int64) {
			j.set(func(s *hostapi.InstallStatus) { s.Phase, s.Done, s.Total = phase, done, total })
		}})
	return res, m.Arch, err
}

// same compares the disk of a plan with what is at its path now.
func (j *Job) same(ctx context.Context, plan hostapi.Disks) error {
	m, err := j.cfg.Machine(ctx)
	if err != nil {
		return err
	}
	find := func(path string, all []blockdev.Disk) (blockdev.Disk, bool) {
		i := slices.IndexFunc(all, func(d blockdev.Disk) bool { return d.Path == path })
		if i < 0 {
			return blockdev.Disk{}, false
		}
		return all[i], true
	}
	var now, then []blockdev.Disk
	for _, f := range m.Disks {
		now = append(now, f.Disk)
	}
	for _, d := range plan.Disks {
		then = append(then, d.Disk)
	}
	a, ok1 := find(plan.Target, now)
	b, ok2 := find(plan.Target, then)
	if !ok1 || !ok2 || a.Size != b.Size || a.Serial != b.Serial || a.WWN != b.WWN || a.Model != b.Model || a.SectorSize != b.SectorSize {
		return fmt.Errorf("%s is another disk now than when it was chosen; nothing was written", plan.Target)
	}
	return nil
}

// Status is how the installation stands.
func (j *Job) Status() hostapi.InstallStatus {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.status
}

func (j *Job) set(change func(*hostapi.InstallStatus)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	change(&j.status)
	for c := range j.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// watchEvery is the least time between two statuses that a watcher is sent.
const watchEvery = 500 * time.Millisecond

// Watch sends the status now and at every change until it is over or ctx is done; what comes in between is left out.
func (j *Job) Watch(ctx context.Context) <-chan hostapi.InstallStatus {
	out := make(chan hostapi.InstallStatus)
	changed := make(chan struct{}, 1)
	j.mu.Lock()
	j.watchers[changed] = struct{}{}
	j.mu.Unlock()
	go func() {
		defer close(out)
		defer func() {
			j.mu.Lock()
			delete(j.watchers, changed)
			j.mu.Unlock()
		}()
		for {
			s := j.Status()
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
			if s.Over() {
				return
			}
			select {
			case <-time.After(watchEvery):
			case <-ctx.Done():
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

func apiError(status int, code, format string, args ...any) error {
	return &hostapi.Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}
