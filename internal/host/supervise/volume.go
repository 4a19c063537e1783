package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"kingpost/internal/projquota"
)

// makeVolume makes a volume's folder. The folder appears with its owner and mode or not at all.
func makeVolume(dir string, uid int, mode string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o711); err != nil {
		return fmt.Errorf("make the volume %s: %w", dir, err)
	}
	aside := filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".new")
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	err := os.Mkdir(aside, 0o700)
	if err == nil {
		err = errors.Join(os.Lchown(aside, uid, uid), os.Chmod(aside, fileMode(mode, 0o750)))
	}
	if err == nil {
		err = os.Rename(aside, dir)
	}
	if err != nil {
		return fmt.Errorf("make the volume %s: %w", dir, err)
	}
	return nil
}

// ensureVolume makes a declared volume what it should be. Data in it is never touched.
func (s *Supervisor) ensureVolume(sp *spec) error {
	uid, err := s.accounts.uid(sp.account())
	if err != nil {
		return err
	}
	dir := s.volumeDir(sp.Module, sp.ID)
	st, err := os.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return makeVolume(dir, uid, sp.Mode)
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("the volume %s is no folder but %s; move it away", dir, st.Mode())
	}
	if want := fileMode(sp.Mode, 0o750); st.Mode().Perm() != want {
		if err := os.Chmod(dir, want); err != nil {
			return err
		}
	}
	if owner, ok := ownerOf(st); ok && owner != uid {
		// The folder itself follows its account; what is inside keeps its owners.
		return os.Lchown(dir, uid, uid)
	}
	return nil
}

// noLimit is what a volume with a size is told where it cannot be kept to it.
const noLimit = "its size is not limited: the data partition has no quotas"

// firstProject is the first number that a volume is given; those below are for people.
const firstProject = 10000

// limitVolume keeps a volume to its size; note says where that cannot be. A volume that never had a size is left alone,
// and one that had keeps its number.
func (s *Supervisor) limitVolume(sp *spec) (note string, err error) {
	dir := s.volumeDir(sp.Module, sp.ID)
	s.quota.Lock()
	defer s.quota.Unlock()
	project, err := projquota.Project(dir)
	if err == nil && project == 0 && sp.Size > 0 {
		if project, err = s.freeProject(); err == nil {
			// The limit comes first: from its first moment in the project the volume has it.
			if err = projquota.Limit(dir, project, sp.Size); err == nil {
				err = projquota.Assign(dir, project)
			}
		}
	} else if err == nil && project != 0 {
		err = projquota.Limit(dir, project, sp.Size)
	}
	if errors.Is(err, projquota.ErrNone) {
		if sp.Size > 0 {
			return noLimit, nil
		}
		return "", nil
	}
	return "", err
}

// freeProject is a number that no volume has. s.quota is held.
func (s *Supervisor) freeProject() (uint32, error) {
	next := uint32(firstProject)
	dirs, err := filepath.Glob(filepath.Join(s.cfg.State, "volumes", "*", "*"))
	if err != nil {
		return 0, err
	}
	for _, d := range dirs {
		p, err := projquota.Project(d)
		if err != nil {
			return 0, err
		}
		next = max(next, p+1)
	}
	return next, nil
}

func ownerOf(st fs.FileInfo) (int, bool) {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid), true
	}
	return 0, false
}
