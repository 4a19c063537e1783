package supervise

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"kingpost/internal/host/stub"
	"kingpost/internal/mesh"
)

// launch is a start under way: everything that both kinds of workload need.
type launch struct {
	s        *Supervisor
	sp       *spec
	st       *stored
	uid      int
	epoch    uint64
	restarts int
	trial    bool
	dir      rundir
	binds    []stub.Bind
	env      []string // sorted, without the image's
}

// prepare makes the folders, files, identity and environment of a start. Nothing of the workload runs yet.
func (s *Supervisor) prepare(ctx context.Context, sp *spec, st *stored) (*launch, error) {
	uid, err := s.accounts.uid(sp.account())
	if err != nil {
		return nil, err
	}
	l := &launch{s: s, sp: sp, st: st, uid: uid, dir: s.rundir(sp.name())}
	// What a start that was cut off has left goes first; the logs and the seat folder are elsewhere.
	if err := os.RemoveAll(string(l.dir)); err != nil {
		return nil, fmt.Errorf("clear the run files of %s: %w", sp.Key(), err)
	}
	if err := os.MkdirAll(l.dir.root(), 0o755); err != nil {
		return nil, err
	}
	if err := os.Chmod(string(l.dir), 0o711); err != nil {
		return nil, err
	}
	env := map[string]string{mesh.EnvMesh: sp.Mesh, mesh.EnvNode: sp.Node, mesh.EnvModule: sp.Module}
	for k, v := range sp.Env {
		env[k] = v
	}
	if err := l.volumes(); err != nil {
		return nil, err
	}
	if err := l.files(); err != nil {
		return nil, err
	}
	if err := l.secretFiles(); err != nil {
		return nil, err
	}
	if len(sp.Seats) > 0 {
		seat := s.seatDir(sp.name())
		if err := l.ownFolder(seat, 0o700); err != nil {
			return nil, err
		}
		// A socket of the run before would refuse the new one's bind.
		if err := os.RemoveAll(filepath.Join(seat, seatSocket)); err != nil {
			return nil, err
		}
		l.binds = append(l.binds, stub.Bind{From: seat, To: viewSeat})
		env[mesh.EnvSeatSocket] = viewSeat + "/" + seatSocket
	}
	if sp.Identity {
		if err := l.identity(ctx); err != nil {
			return nil, err
		}
		l.binds = append(l.binds, stub.Bind{From: l.dir.identity(), To: viewIdentity, ReadOnly: true})
		env[mesh.EnvIdentity] = viewIdentity
	}
	if sp.HostAPI {
		if err := s.offerSocket(); err != nil {
			return nil, err
		}
		l.binds = append(l.binds, stub.Bind{From: s.socketDir(), To: viewHost, ReadOnly: true})
		env[mesh.EnvHostSocket] = viewHost + "/" + hostSocket
	}
	for k, v := range env {
		l.env = append(l.env, k+"="+v)
	}
	sort.Strings(l.env)
	return l, nil
}

// Where the host's things are in a workload's view.
const (
	viewSeat     = mesh.PathRun + "/seat"
	viewIdentity = mesh.PathRun + "/identity"
	viewHost     = mesh.PathRun + "/host"
	seatSocket   = "seat.sock"
	hostSocket   = "host.sock"
)

// socketDir is the folder that workloads see with the host's socket in it. It is the folder, and not the socket, since each
// host makes a socket anew: a workload that outlives one must find the next one's.
func (s *Supervisor) socketDir() string { return filepath.Join(s.cfg.Run, "hostapi") }

// offerSocket has the socket of this host in the folder, by one rename over the one before.
func (s *Supervisor) offerSocket() error {
	path := filepath.Join(s.socketDir(), hostSocket)
	here, err := os.Stat(s.cfg.HostSocket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it serves nobody yet
	}
	if err != nil {
		return fmt.Errorf("offer the host's socket: %w", err)
	}
	if have, err := os.Stat(path); err == nil && os.SameFile(have, here) {
		return nil
	}
	s.offers.Lock()
	defer s.offers.Unlock()
	aside := path + ".new"
	err = errors.Join(os.MkdirAll(s.socketDir(), 0o755), os.RemoveAll(aside))
	if err == nil {
		err = os.Link(s.cfg.HostSocket, aside)
	}
	if err == nil {
		err = os.Rename(aside, path)
	}
	if err != nil {
		return fmt.Errorf("offer the host's socket: %w", err)
	}
	return nil
}

func (s *Supervisor) seatDir(name string) string { return filepath.Join(s.cfg.Run, "seats", name) }

// ownFolder makes a folder of the account's.
func (l *launch) ownFolder(dir string, mode os.FileMode) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return errors.Join(os.Lchown(dir, l.uid, l.uid), os.Chmod(dir, mode))
}

func (s *Supervisor) volumeDir(module, id string) string {
	return filepath.Join(s.cfg.State, "volumes", module, id)
}

// volumes makes sure that each volume is there before it is bound; the volume's own unit sets its mode.
func (l *launch) volumes() error {
	for _, m := range l.sp.Volumes {
		dir := l.s.volumeDir(l.sp.Module, m.Volume)
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			if err := makeVolume(dir, l.uid, ""); err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		l.binds = append(l.binds, stub.Bind{From: dir, To: m.Path, ReadOnly: m.ReadOnly})
	}
	return nil
}

// files writes the instance's own copies of its file resources: a handover and its way back each see
// the content they were declared with.
func (l *launch) files() error {
	if len(l.sp.Files) == 0 {
		return nil
	}
	if err := os.Mkdir(l.dir.files(), 0o711); err != nil {
		return err
	}
	for _, m := range l.sp.Files {
		c, ok := l.sp.FileContent[m.File]
		if !ok {
			return fmt.Errorf("the file %s of %s is not declared", m.File, l.sp.Key())
		}
		path := filepath.Join(l.dir.files(), m.File)
		if err := writeOwned(path, []byte(c.Content), l.uid, fileMode(c.Mode, 0o640)); err != nil {
			return err
		}
		l.binds = append(l.binds, stub.Bind{From: path, To: m.Path, ReadOnly: true})
	}
	return nil
}

func (l *launch) identity(ctx context.Context) error {
	if l.s.cfg.Identities == nil {
		return fmt.Errorf("%w: there is no mesh CA here yet that could give %s an identity", errSource, l.sp.Key())
	}
	cert, key, ca, err := l.s.cfg.Identities.Issue(ctx, l.sp.Module)
	if err != nil {
		return fmt.Errorf("%w: an identity for %s: %w", errSource, l.sp.Module, err)
	}
	if err := os.Mkdir(l.dir.identity(), 0o711); err != nil {
		return err
	}
	for name, f := range map[string]struct {
		b    []byte
		mode os.FileMode
	}{"cert.pem": {cert, 0o444}, "key.pem": {key, 0o400}, "ca.pem": {ca, 0o444}} {
		if err := writeOwned(filepath.Join(l.dir.identity(), name), f.b, l.uid, f.mode); err != nil {
			return err
		}
	}
	return nil
}

func writeOwned(path string, b []byte, uid int, mode os.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Chown(uid, uid), f.Chmod(mode), f.Close())
}

func fileMode(octal string, def os.FileMode) os.FileMode {
	if n, err := strconv.ParseUint(octal, 8, 32); octal != "" && err == nil {
		return os.FileMode(n) & 0o777
	}
	return def
}

func (l *launch) record() runRecord {
	return runRecord{
		Spec: l.sp, Source: l.st.Source, Files: l.st.Files, UID: l.uid, Epoch: l.epoch,
		Since: l.s.cfg.Now(), Restarts: l.restarts, Slot: l.sp.slot, Trial: l.trial,
	}
}

// environment adds over's entries to base's; of two with one name the later counts.
func environment(base []string, over ...string) []string {
	at := map[string]int{}
	var out []string
	for _, e := range slices.Concat(base, over) {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	return out
}

// oomScore orders who dies when memory runs out: what is critical last (proc_pid_oom_score_adj(5)).
func oomScore(critical bool) int {
	if critical {
		return -800
	}
	return 100
}

func (l *launch) capabilities() []int {
	var out []int
	for _, c := range l.sp.Capabilities {
		if n, ok := mesh.CapabilityNumber(c); ok {
			out = append(out, n)
		}
	}
	return out
}
