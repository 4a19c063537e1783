package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// troubles are what a person should know of the host's own files and the host can live with.
type troubles struct {
	mu   sync.Mutex
	list []string
}

// maxTroubles bounds the list; one is enough to look closer.
const maxTroubles = 16

func (t *troubles) add(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.list, text) && len(t.list) < maxTroubles {
		t.list = append(t.list, text)
	}
}

// Warnings implements API.
func (s *Supervisor) Warnings() []string {
	s.troubles.mu.Lock()
	defer s.troubles.mu.Unlock()
	return slices.Clone(s.troubles.list)
}

// trouble warns, and keeps the warning for Warnings.
func (s *Supervisor) trouble(format string, a ...any) {
	s.warn(format, a...)
	s.troubles.add(fmt.Sprintf(format, a...))
}

// noRoom says that the node's own disk takes nothing, which is nobody's failure and goes on when it does again.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.EDQUOT)
}

// setAside renames a file that cannot be used, and says where it is. On a disk that takes no writes it stays where it is.
func setAside(path, suffix string) string {
	aside := path + suffix
	if err := os.Rename(path, aside); err != nil {
		return fmt.Sprintf("it cannot be set aside: %v", err)
	}
	return "set aside as " + aside
}

// ownersOf finds the accounts of modules by who owns their volumes, and the highest number that any file there carries.
// It is what there is when the accounts file is lost.
func ownersOf(volumes string) (uids map[string]int, highest int, err error) {
	uids = map[string]int{}
	modules, err := os.ReadDir(volumes)
	if errors.Is(err, fs.ErrNotExist) {
		return uids, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	for _, m := range modules {
		owners := map[int]bool{}
		entries, err := os.ReadDir(filepath.Join(volumes, m.Name()))
		if err != nil {
			return nil, 0, err
		}
		for _, v := range entries {
			if st, err := v.Info(); err == nil && v.IsDir() {
				if uid, ok := ownerOf(st); ok && uid >= firstUID && uid <= lastUID {
					owners[uid] = true
				}
			}
		}
		// More than one: accounts with names, and nothing says which is which.
		if len(owners) == 1 {
			for uid := range owners {
				uids[m.Name()] = uid
			}
		}
	}
	err = filepath.WalkDir(volumes, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a workload works there
		}
		if uid, ok := ownerOf(st); err == nil && ok && uid <= lastUID {
			highest = max(highest, uid)
		}
		return err
	})
	return uids, highest, err
}
