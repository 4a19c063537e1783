package pid1

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// finishReset wipes the data partition where the node was told to reset itself, before anything else uses it. A wipe that
// a power cut has interrupted goes on here: its mark is removed last.
func (p *pid1) finishReset() {
	mark, err := readReset(mesh.PathReset)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		p.warn("a reset was asked for, but what it says cannot be read (%v); it is done all the same, and node.yaml counts", err)
	}
	p.console.Line("reset: wiping the node's state")
	if err := wipe(mesh.PathData, mesh.PathReset, resetKeeps()); err != nil {
		p.warn("the reset is not finished: %v; it goes on at the next boot", err)
		return
	}
	if err := finishWipe(mesh.PathReset, mesh.PathNode, mark); err != nil {
		p.warn("the reset is not finished: %v; it goes on at the next boot", err)
		return
	}
	p.console.Line("reset: done; this is a new node, with a new key, on the same release")
}

// resetKeeps are the files that a reset leaves: the last known time is the machine's and not the node's, and without a
// battery nothing else knows it.
func resetKeeps() []string { return []string{clockFile, mesh.PathClockSynced} }

func readReset(path string) (mesh.Reset, error) {
	var r mesh.Reset
	b, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return mesh.Reset{}, fmt.Errorf("read %s: %w", path, err)
	}
	return r, nil
}

// wipe removes everything on the data partition mounted at dir but mark and keep. Who the node is goes first: what is left
// of a wipe that fails is then nobody's.
func wipe(dir, mark string, keep []string) error {
	keep = append(slices.Clone(keep), mark, filepath.Join(dir, "lost+found"))
	state := filepath.Dir(mark)
	var errs []error
	for _, first := range []string{"identity", "node"} {
		errs = append(errs, os.RemoveAll(filepath.Join(state, first)))
	}
	errs = append(errs, removeAllBut(dir, keep))
	return errors.Join(errs...)
}

// removeAllBut removes what is in dir, but for the paths in keep and the folders that lead to them.
func removeAllBut(dir string, keep []string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case slices.Contains(keep, path):
		case e.IsDir() && slices.ContainsFunc(keep, func(k string) bool {
			rel, err := filepath.Rel(path, k)
			return err == nil && filepath.IsLocal(rel)
		}):
			errs = append(errs, removeAllBut(path, keep))
		default:
			errs = append(errs, os.RemoveAll(path))
		}
	}
	return errors.Join(errs...)
}

// finishWipe keeps which node.yaml does not count any more, sees to it that all of the wipe is on the disk, and only then
// removes the mark.
func finishWipe(mark, node string, r mesh.Reset) error {
	if err := os.MkdirAll(node, 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(node, mesh.FileVoid), append(b, '\n'), 0o600); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(mark))
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(d.Fd()))
	if err := errors.Join(err, d.Close()); err != nil {
		return fmt.Errorf("write out the wiped data partition: %w", err)
	}
	return atomicfile.Remove(mark)
}
