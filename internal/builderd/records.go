package builderd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh/verbs"
)

// records is the list of builds on disk, oldest first, the last keepBuilds of them.
type records struct {
	path string
	mu   sync.Mutex
	list []verbs.BuildRecord
}

func (r *records) open(path string) error {
	r.path = path
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && fi.Size() > maxRecords {
		err = fmt.Errorf("it has %d bytes, more than %d", fi.Size(), maxRecords)
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, &r.list)
	}
	if err != nil {
		return fmt.Errorf("read the list of builds: %w; the bundles are in the store, so moving the file away loses only the list", err)
	}
	return nil
}

// add records a build under the next number, on disk when it returns.
func (r *records) add(b verbs.BuildRecord) (*verbs.BuildRecord, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.Number = 1
	if n := len(r.list); n > 0 {
		b.Number = r.list[n-1].Number + 1
	}
	next := append(slices.Clone(r.list), b)
	if len(next) > keepBuilds {
		next = next[len(next)-keepBuilds:]
	}
	data, err := json.Marshal(next)
	if err == nil {
		err = atomicfile.Write(r.path, data, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("record the build of %s (it is in the store): %w", b.Name, err)
	}
	r.list = next
	return &b, nil
}

// newest lists the builds of name, or all, newest first.
func (r *records) newest(name string) []verbs.BuildRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []verbs.BuildRecord{}
	for _, b := range slices.Backward(r.list) {
		if name == "" || b.Name == name {
			out = append(out, b)
		}
	}
	return out
}
