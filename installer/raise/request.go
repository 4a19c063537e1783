package raise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh/hostapi"
)

// Files in Config.Dir. They hold what cannot be observed: that somebody asked for a raise, and that it
// was confirmed.
const (
	fileRequest = "request.json"
	fileDone    = "done.json"
)

// savedRequest is the request under way.
type savedRequest struct {
	hostapi.RaiseRequest
	Started time.Time `json:"started"`
}

// load reads one file; false where there is none that can be read.
func (r *Raiser) load(name string, v any) bool {
	path := filepath.Join(r.cfg.Dir, name)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		r.cfg.Log.WithError(err).WithField("file", path).Error("the state of the raise cannot be read")
		return false
	}
	return true
}

func (r *Raiser) save(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write the state of the raise: %w", err)
	}
	if err := os.MkdirAll(r.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("write the state of the raise: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(r.cfg.Dir, name), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the state of the raise: %w", err)
	}
	return nil
}

// saveRequest puts the request on disk where it is not yet.
func (r *Raiser) saveRequest() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keepRequest()
}

// keepRequest is saveRequest for a caller that holds mu.
func (r *Raiser) keepRequest() error {
	if !r.unsaved {
		return nil
	}
	if err := r.save(fileRequest, r.request); err != nil {
		return err
	}
	r.unsaved = false
	return nil
}
