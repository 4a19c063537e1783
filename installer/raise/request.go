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

func (r *Raiser) load(name string, v any) (bool, error) {
	path := filepath.Join(r.cfg.Dir, name)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the state of the raise: %w", err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return false, fmt.Errorf("read the state of the raise: %s: %w", path, err)
	}
	return true, nil
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
