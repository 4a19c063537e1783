package identity

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
)

// Files below the identity folder. membership.json is written last: without it the rest is the leftover
// of a mesh that never came to be, and is made anew.
const (
	fileMembership = "membership.json"
	fileCAKey      = "ca.key"
	fileCA         = "ca.pem"
	fileNode       = "node.pem"
	fileOperator   = "operator.pem"
	dirComponents  = "components" // MODULE.pem: certificate, then key
)

// record is membership.json.
type record struct {
	Mesh   string `json:"mesh"`
	Node   string `json:"node"`
	Joined bool   `json:"joined,omitempty"`
	// Keeper says who keeps the CA's key: "" this host, "vault" the vault.
	Keeper string `json:"keeper,omitempty"`
}

func (a *Authority) path(elem ...string) string {
	return filepath.Join(append([]string{a.dir}, elem...)...)
}

func (a *Authority) prepare() error {
	for _, d := range []string{a.dir, a.path(dirComponents)} {
		if err := atomicfile.PrivateDir(d); err != nil {
			return fmt.Errorf("prepare the identity folder: %w", err)
		}
	}
	return nil
}

func (a *Authority) readRecord() (record, error) {
	b, err := os.ReadFile(a.path(fileMembership))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	var r record
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err == nil {
		err = errors.Join(mesh.CheckName(r.Mesh), mesh.CheckName(r.Node))
	}
	if err != nil {
		return record{}, fmt.Errorf("read this node's membership in %s: %w; restore the file from a backup, or wipe the data partition to start anew", a.path(fileMembership), err)
	}
	return r, nil
}

func (a *Authority) writeRecord(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(a.path(fileMembership), b, 0o600)
}

// readOptional reads a file that may be absent: then it returns nil.
func (a *Authority) readOptional(elem ...string) ([]byte, error) {
	b, err := os.ReadFile(a.path(elem...))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}
