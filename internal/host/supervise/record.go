package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// runRecord says what a running workload is and from where. It lies below mesh.PathRun and so ends with
// the boot, as the workload does; a host that comes after another finds in it what it adopts.
type runRecord struct {
	PID      int         `json:"pid"`
	Start    uint64      `json:"start"`
	Spec     *spec       `json:"spec"`
	Source   mesh.Source `json:"source"`
	Files    string      `json:"files"` // the artifact's files that it runs from
	UID      int         `json:"uid"`
	Epoch    uint64      `json:"epoch,omitempty"`
	Since    time.Time   `json:"since"`
	Restarts int         `json:"restarts,omitempty"`
	Slot     string      `json:"slot,omitempty"`
	// Trial says that it is to take over from another instance of its resource and has not yet.
	Trial bool `json:"trial,omitempty"`
	// Stopping says that it was told to stop: its end, whatever its exit code, is then neither a failure nor the completion
	// of a run.
	Stopping bool `json:"stopping,omitempty"`
	// Address is what a container on a private network has.
	Address netip.Addr `json:"address,omitzero"`
}

func (r *runRecord) write(path string) error {
	b, err := json.Marshal(r)
	if err == nil {
		err = atomicfile.Write(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the run record: %w", err)
	}
	return nil
}

// rundir is the folder of one resource's run files, below mesh.PathRun.
type rundir string

func (s *Supervisor) rundir(name string) rundir {
	return rundir(filepath.Join(s.cfg.Run, "instances", name))
}

func (d rundir) record() string     { return filepath.Join(string(d), "run.json") }
func (d rundir) execSpec() string   { return filepath.Join(string(d), "exec.json") }
func (d rundir) healthSpec() string { return filepath.Join(string(d), "health.json") }
func (d rundir) failed() string     { return filepath.Join(string(d), "failed") }
func (d rundir) files() string      { return filepath.Join(string(d), "files") }
func (d rundir) secrets() string    { return filepath.Join(string(d), "secrets") }
func (d rundir) identity() string   { return filepath.Join(string(d), "identity") }
func (d rundir) root() string       { return filepath.Join(string(d), "root") }
func (d rundir) bundle() string     { return filepath.Join(string(d), "oci") }

// runRecords are those that can be read.
func (s *Supervisor) runRecords() []*runRecord {
	es, _ := os.ReadDir(filepath.Join(s.cfg.Run, "instances"))
	var out []*runRecord
	for _, e := range es {
		if r, err := s.rundir(e.Name()).readRecord(); err == nil && r != nil {
			out = append(out, r)
		}
	}
	return out
}

// readRecord returns the record of a resource, nil when there is none.
func (d rundir) readRecord() (*runRecord, error) {
	b, err := os.ReadFile(d.record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var r runRecord
	if err := json.Unmarshal(b, &r); err != nil || r.Spec == nil {
		return nil, fmt.Errorf("the run record %s cannot be read: %w", d.record(), errors.Join(err, errors.New("no spec")))
	}
	r.Spec.slot = r.Slot
	return &r, nil
}
