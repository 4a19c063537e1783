package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"kingpost/internal/blockdev"
	"kingpost/internal/faultdisk"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/release"
)

// machine is a made-up one: the stick is sda, and it has the disks that it is told to have.
type machine struct {
	t     *testing.T
	stick *stick

	mu       sync.Mutex
	disks    map[string]*faultdisk.Disk // by name
	busy     string
	powered  []string
	opens    int
	firmware error
}

func newMachine(t *testing.T, s *stick) *machine {
	return &machine{t: t, stick: s, disks: map[string]*faultdisk.Disk{}}
}

func (m *machine) plug(name string, d *faultdisk.Disk) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disks[name] = d
}

func (m *machine) look(ctx context.Context) (Machine, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	table, err := release.ReadGPT(m.stick.Disk, m.stick.Disk.Size(), 0)
	if err != nil {
		return Machine{}, err
	}
	out := Machine{Booted: "/dev/sda", Layout: LayoutOf("amd64", table)}
	out.Layout.Data = int64(len(m.stick.data))
	for name, d := range map[string]*faultdisk.Disk{"sda": m.stick.Disk} {
		out.Disks = append(out.Disks, m.found(ctx, name, d))
	}
	for name, d := range m.disks {
		out.Disks = append(out.Disks, m.found(ctx, name, d))
	}
	return out, nil
}

func (m *machine) found(ctx context.Context, name string, d *faultdisk.Disk) Found {
	f := Found{Survey: blockdev.Survey{Disk: blockdev.Disk{Name: name, Path: "/dev/" + name, Size: d.Size(), SectorSize: d.SectorSize(), Serial: "S-" + name, Serials: []string{"S-" + name}, Bus: "ata"}}}
	f.read(ctx, func(string) (io.ReaderAt, io.Closer, error) { return d, io.NopCloser(nil), nil })
	return f
}

type opened struct {
	*faultdisk.Disk
	io.Closer
}

func (m *machine) job(cfg *mesh.InstallConfig) *Job {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return NewJob(Config{Install: cfg, Machine: m.look, Random: rand.NewChaCha8([32]byte{2}), Now: time.Now, Log: log,
		Busy: func() string { m.mu.Lock(); defer m.mu.Unlock(); return m.busy },
		Medium: func() (*Medium, io.Closer, error) {
			r, err := ReadMedium(m.stick.Disk, m.stick.Disk.Size(), "amd64", m.stick.Root, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(m.stick.zst)), nil })
			return r, io.NopCloser(nil), err
		},
		Target: func(path string) (Target, error) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.opens++
			d := m.disks[strings.TrimPrefix(path, "/dev/")]
			if d == nil {
				return nil, errors.New("there is no such disk")
			}
			return opened{d, io.NopCloser(nil)}, nil
		},
		Firmware: func(*Result, string) (string, error) { return "entry Boot0001", m.firmware },
		Power: func(action string) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.powered = append(m.powered, action)
			return nil
		}})
}

// run runs a job until the test ends it, in a world whose clock does not wait.
func run(t *testing.T, j *Job) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- j.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func until(t *testing.T, j *Job, state string) hostapi.InstallStatus {
	t.Helper()
	for end := time.Now().Add(time.Hour); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if s := j.Status(); s.State == state {
			return s
		}
	}
	t.Fatalf("it is %+v and not %s", j.Status(), state)
	return hostapi.InstallStatus{}
}

// A disk of the stick's own size, as a machine has.
func (m *machine) empty(sector int) *faultdisk.Disk {
	return faultdisk.New(m.stick.Disk.Size()+20<<20, sector)
}

// By node.yaml alone: once, and never again from the same stick or from another one of the same release and node.yaml.
func TestUnattended(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, s)
		m.plug("sdb", m.empty(512))
		cfg := by(mesh.DiskSelector{Serial: "S-sdb"})
		j := m.job(cfg)
		if st := j.Status(); st.State != hostapi.InstallWaiting {
			t.Errorf("before it begins: %+v", st)
		}
		end := run(t, j)
		var phases []string
		for st := range j.Watch(t.Context()) {
			if n := len(phases); st.Phase != "" && (n == 0 || phases[n-1] != st.Phase) {
				phases = append(phases, st.Phase)
			}
		}
		st := until(t, j, hostapi.InstallDone)
		if !strings.Contains(st.Reason, "remove the stick") || st.Firmware != "entry Boot0001" || st.DiskGUID == "" || st.Target != "/dev/sdb" {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Minute)
		if len(m.powered) != 1 || m.powered[0] != "reboot" {
			t.Errorf("it does %q", m.powered)
		}
		if _, err := j.Start(t.Context(), hostapi.InstallRequest{Install: cfg}); err == nil {
			t.Error("it is installed twice by a request")
		}
		end()

		sum := m.disks["sdb"].Sum()
		for name, cfg := range map[string]*mesh.InstallConfig{"again": cfg, "another disk": by(mesh.DiskSelector{Serial: "S-sdc"})} {
			m.plug("sdc", m.empty(512))
			j = m.job(cfg)
			end = run(t, j)
			if st := until(t, j, hostapi.InstallInstalled); st.Target != "/dev/sdb" || !strings.Contains(st.Reason, "remove the stick") {
				t.Errorf("%s: %+v", name, st)
			}
			time.Sleep(10 * time.Minute)
			end()
		}
		if m.disks["sdb"].Sum() != sum || m.opens != 1 || m.disks["sdc"].Sum() != m.empty(512).Sum() {
			t.Error("a disk was written to once more")
		}
	})
}

// Two disks that match are refused, until one is gone; a disk that comes while the others are looked at is not overlooked.
func TestUnattendedWaits(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, s)
		m.plug("sdb", m.empty(512))
		cfg := by(mesh.DiskSelector{Bus: "ata", Size: "< 1GB"})
		cfg.Then = mesh.ThenWait
		j := m.job(cfg)
		end := run(t, j)
		time.Sleep(4 * time.Second)
		m.plug("sdc", m.empty(512))
		st := until(t, j, hostapi.InstallRefused)
		if !strings.Contains(st.Reason, "/dev/sdb") || !strings.Contains(st.Reason, "/dev/sdc") || m.opens != 0 {
			t.Errorf("%+v, opened %d times", st, m.opens)
		}
		time.Sleep(time.Hour)
		m.mu.Lock()
		delete(m.disks, "sdb")
		m.busy = "this node is in the mesh home"
		m.mu.Unlock()
		time.Sleep(time.Minute)
		if st := j.Status(); st.State != hostapi.InstallRefused || st.Reason != m.busy || m.opens != 0 {
			t.Errorf("%+v", st)
		}
		m.mu.Lock()
		m.busy, m.firmware = "", errors.New("the variables are full")
		m.mu.Unlock()
		st = until(t, j, hostapi.InstallDone)
		if st.Target != "/dev/sdc" || !strings.Contains(st.Firmware, "the variables are full") || !strings.Contains(st.Reason, "restart the node") {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Hour)
		if len(m.powered) != 0 {
			t.Errorf("it does %q", m.powered)
		}
		end()
	})
}

// A disk that fails is begun three times, and then left alone.
func TestUnattendedFails(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, s)
		d := m.empty(512)
		d.Fail = func(_ int, op faultdisk.Op) error {
			if op.Kind == faultdisk.Write && op.Off > 40<<20 {
				return errors.New("input/output error")
			}
			return nil
		}
		m.plug("sdb", d)
		j := m.job(by(mesh.DiskSelector{Serial: "S-sdb"}))
		end := run(t, j)
		st := until(t, j, hostapi.InstallFailed)
		if !strings.Contains(st.Reason, "input/output error") || !strings.Contains(st.Reason, "nothing on the disk can be started") {
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Hour)
		if m.opens != maxTries {
			t.Errorf("it was begun %d times", m.opens)
		}
		// Somebody who asks begins it once more.
		d.Fail = nil
		if _, err := j.Start(t.Context(), hostapi.InstallRequest{}); err != nil {
			t.Error(err)
		}
		until(t, j, hostapi.InstallDone)
		end()
	})
}

func TestStart(t *testing.T) {
	s := newStick(t, "0.2.0", smallESP)
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, s)
		m.plug("sdb", m.empty(512))
		j := m.job(nil)
		end := run(t, j)
		target := by(mesh.DiskSelector{Serial: "S-sdb"})
		for name, c := range map[string]struct {
			req  hostapi.InstallRequest
			busy string
			want string
		}{
			"no disk is said":    {hostapi.InstallRequest{}, "", "neither the request nor node.yaml"},
			"nonsense":           {hostapi.InstallRequest{Install: by(mesh.DiskSelector{Size: "large"})}, "", "is no size"},
			"what comes after":   {hostapi.InstallRequest{Install: &mesh.InstallConfig{Disk: target.Disk, Then: "sing"}}, "", "is none of reboot"},
			"another disk":       {hostapi.InstallRequest{Install: target, Target: "/dev/sdc"}, "", "changed places"},
			"a node of a mesh":   {hostapi.InstallRequest{Install: target}, "this node is in the mesh home", "in the mesh home"},
			"no selector at all": {hostapi.InstallRequest{Install: &mesh.InstallConfig{}}, "", "names no disk"},
		} {
			m.busy = c.busy
			if _, err := j.Start(t.Context(), c.req); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
		m.busy = ""
		for want, req := range map[string]hostapi.InstallRequest{hostapi.InstallPlanned: {Install: target, DryRun: true}, hostapi.InstallRefused: {Install: by(mesh.DiskSelector{Serial: "other"})}} {
			if st, err := j.Start(t.Context(), req); err != nil || st.State != want || st.Plan == nil {
				t.Errorf("%+v, %v, wanted %s", st, err, want)
			}
		}
		if m.opens != 0 || j.Status().State != hostapi.InstallNone {
			t.Errorf("opened %d times, %+v", m.opens, j.Status())
		}
		if st, err := j.Start(t.Context(), hostapi.InstallRequest{Install: target, Target: "/dev/sdb"}); err != nil || st.State != hostapi.InstallRunning {
			t.Errorf("%+v, %v", st, err)
		}
		if _, err := j.Start(t.Context(), hostapi.InstallRequest{Install: target}); err == nil {
			t.Error("two at once")
		}
		until(t, j, hostapi.InstallDone)
		end()
	})
}
