package supervise

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// stateFormat is the version of state.json. A host reads every older one; unknown fields of a newer one are kept out.
const stateFormat = 1

// diskState is what cannot be observed.
type diskState struct {
	Format  int                   `json:"format"`
	Epoch   uint64                `json:"epoch"`
	Applied mesh.Version          `json:"applied"`
	Units   map[string]*unitState `json:"units,omitempty"`
}

// unitState is what cannot be observed of one resource.
type unitState struct {
	// Failures counts runs of the spec Spec that failed in a row.
	Spec     string `json:"spec,omitempty"`
	Failures int    `json:"failures,omitempty"`
	Held     bool   `json:"held,omitempty"`
	Reason   string `json:"reason,omitempty"`
	// Done is the spec that ran to completion.
	Done string `json:"done,omitempty"`
	Exit *int   `json:"exit,omitempty"`
	// Failed is the spec whose handover failed, FailedReason why.
	Failed       string `json:"failed,omitempty"`
	FailedReason string `json:"failedReason,omitempty"`
	// Good is the id of the spec in the good file of this resource.
	Good string `json:"good,omitempty"`
}

// stateFile keeps a diskState on disk and writes it only when it changed.
type stateFile struct {
	path  string
	write func(path string, b []byte, perm os.FileMode) error
	mu    sync.Mutex
	st    diskState
	last  []byte
}

// openState reads the state. A file that cannot be read is set aside and said so; the node then starts
// with what it can observe.
func openState(path string) (*stateFile, string, error) {
	f := &stateFile{path: path, write: atomicfile.Write, st: diskState{Format: stateFormat}}
	b, err := os.ReadFile(path)
	warning := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, "", fmt.Errorf("read the host's state: %w", err)
	default:
		var head struct {
			Format int             `json:"format"`
			Epoch  json.RawMessage `json:"epoch"`
		}
		err := json.Unmarshal(b, &head)
		suffix := ".bad"
		if err == nil && head.Format > stateFormat {
			suffix = fmt.Sprintf(".format-%d", head.Format)
			err = fmt.Errorf("its format %d is newer than %d, which this host knows", head.Format, stateFormat)
		}
		if err == nil {
			err = json.Unmarshal(b, &f.st)
		}
		if err != nil {
			f.st = diskState{Format: stateFormat}
			// The one thing that nobody can observe and that must never go back; see atLeast for where else it is found.
			_ = json.Unmarshal(head.Epoch, &f.st.Epoch)
			warning = fmt.Sprintf("the host's state %s cannot be read (%v), %s; the host goes on with what it can observe: holds, failures and completed runs are forgotten", path, err, setAside(path, suffix))
		} else {
			f.last = b
		}
	}
	f.st.Format = stateFormat
	if f.st.Units == nil {
		f.st.Units = map[string]*unitState{}
	}
	maps.DeleteFunc(f.st.Units, func(_ string, u *unitState) bool { return u == nil })
	return f, warning, nil
}

// update changes the state and writes it. The change holds in memory even when the write fails.
func (f *stateFile) update(change func(*diskState)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.st)
	for k, u := range f.st.Units {
		if *u == (unitState{}) {
			delete(f.st.Units, k)
		}
	}
	b, err := json.MarshalIndent(&f.st, "", " ")
	if err != nil {
		return err
	}
	if bytes.Equal(b, f.last) {
		return nil
	}
	if err := f.write(f.path, b, 0o600); err != nil {
		return err
	}
	f.last = b
	return nil
}

func (f *stateFile) unit(key string, change func(*unitState)) error {
	return f.update(func(d *diskState) {
		u := d.Units[key]
		if u == nil {
			u = &unitState{}
			d.Units[key] = u
		}
		change(u)
	})
}

func (f *stateFile) get(key string) unitState {
	f.mu.Lock()
	defer f.mu.Unlock()
	if u := f.st.Units[key]; u != nil {
		return *u
	}
	return unitState{}
}

func (f *stateFile) epoch() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st.Epoch
}

func (f *stateFile) applied() mesh.Version {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.st.Applied
}

// atLeast says that an epoch was given out already, as a running controller or a declaration shows.
func (f *stateFile) atLeast(epoch uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.st.Epoch = max(f.st.Epoch, epoch)
}

// nextEpoch gives out the next epoch; it is on disk before anybody can use it.
func (f *stateFile) nextEpoch() (uint64, error) {
	var e uint64
	err := f.update(func(d *diskState) { d.Epoch++; e = d.Epoch })
	if err != nil {
		return 0, fmt.Errorf("keep the next epoch: %w", err)
	}
	return e, nil
}
