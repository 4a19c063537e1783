package vault

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Bounds of what is kept.
const (
	maxValue     = 64 << 10 // bytes of one secret
	keepVersions = 8        // of one secret
	maxNames     = 4096     // secrets, and as many keys
	maxFile      = 2 << 20  // bytes of a record
)

const (
	secretsDir = "secrets"
	keysDir    = "keys"
)

// Vault keeps secrets in a folder. Make it by Open; no two may have one folder open.
type Vault struct {
	dir string
	box *box
	now func() time.Time
	mu  sync.Mutex
}

// sealedVersion is one version of a secret as it lies on disk.
type sealedVersion struct {
	Number uint64    `json:"number"`
	At     time.Time `json:"at"`
	Sealed []byte    `json:"sealed"`
}

// secretRecord is a secret's file, oldest version first.
type secretRecord struct {
	Versions []sealedVersion `json:"versions"`
}

// Open opens the vault in dir, or makes it.
func Open(dir string, now func() time.Time) (*Vault, error) {
	empty := true
	for _, d := range []string{secretsDir, keysDir} {
		path := filepath.Join(dir, d)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return nil, fmt.Errorf("make the vault's folders: %w", err)
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, fmt.Errorf("read the vault's folders: %w", err)
		}
		empty = empty && len(entries) == 0
	}
	b, err := openBox(dir, empty)
	if err != nil {
		return nil, err
	}
	return &Vault{dir: dir, box: b, now: now}, nil
}

// Check looks whether the vault's folders and key are there.
func (v *Vault) Check(context.Context) error {
	for _, name := range []string{keyFile, secretsDir, keysDir} {
		if _, err := os.Stat(filepath.Join(v.dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// checkName accepts MODULE/NAME, both as mesh.CheckName wants them; so a name is a safe path as well.
func checkName(name string) error {
	module, rest, ok := strings.Cut(name, "/")
	if !ok {
		return fmt.Errorf("name: %.80q is not MODULE/NAME", name)
	}
	for _, n := range []string{module, rest} {
		if err := mesh.CheckName(n); err != nil {
			return fmt.Errorf("name: %w", err)
		}
	}
	return nil
}

func label(kind, name string, version uint64) string {
	return fmt.Sprintf("%s %s version %d", kind, name, version)
}

func (v *Vault) path(dir, name string) string {
	return filepath.Join(v.dir, dir, filepath.FromSlash(name)+".json")
}

// load reads a record into r; false when there is none.
func (v *Vault) load(dir, name string, r any) (bool, error) {
	path := v.path(dir, name)
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil && fi.Size() > maxFile {
		err = errors.New("its file is too large")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err != nil {
		return false, fmt.Errorf("read the record of %s: %w", name, err)
	}
	return true, nil
}

// keep writes a record, whole or not at all. Making a new one is bounded by maxNames.
func (v *Vault) keep(dir, name string, isNew bool, r any) error {
	if isNew {
		names, err := v.names(dir)
		if err != nil {
			return err
		}
		if len(names) >= maxNames {
			return seat.Errorf(mesh.CodeConflict, "the vault holds %d %s, the most it can", len(names), dir)
		}
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record of %s: %w", name, err)
	}
	path := v.path(dir, name)
	folder := filepath.Dir(path)
	if err := os.Mkdir(folder, 0o700); err == nil {
		err = atomicfile.SyncDir(filepath.Dir(folder))
		if err != nil {
			return fmt.Errorf("write the record of %s: %w", name, err)
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("write the record of %s: %w", name, err)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write the record of %s: %w", name, err)
	}
	return nil
}

// names lists what is kept below dir, sorted. What atomicfile left behind has no such name.
func (v *Vault) names(dir string) ([]string, error) {
	var out []string
	root := filepath.Join(v.dir, dir)
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, ok := strings.CutSuffix(p, ".json")
		if ok && checkName(name) == nil {
			out = append(out, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the vault: %w", err)
	}
	slices.Sort(out)
	return out, nil
}

// Put stores value as the next version of name.
func (v *Vault) Put(name string, value []byte) (*verbs.PutResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var r secretRecord
	known, err := v.load(secretsDir, name, &r)
	if err != nil {
		return nil, err
	}
	next := uint64(1)
	if n := len(r.Versions); n > 0 {
		next = r.Versions[n-1].Number + 1
	}
	r.Versions = append(r.Versions, sealedVersion{Number: next, At: v.now().UTC(), Sealed: v.box.seal(value, label("secret", name, next))})
	if len(r.Versions) > keepVersions {
		r.Versions = r.Versions[len(r.Versions)-keepVersions:]
	}
	if err := v.keep(secretsDir, name, !known, &r); err != nil {
		return nil, err
	}
	return &verbs.PutResult{Name: name, Version: next}, nil
}

// Get reads a version of name; 0 is the newest.
func (v *Vault) Get(name string, version uint64) (value []byte, number uint64, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var r secretRecord
	known, err := v.load(secretsDir, name, &r)
	if err != nil {
		return nil, 0, err
	}
	if !known || len(r.Versions) == 0 {
		return nil, 0, seat.Errorf(mesh.CodeNotFound, "there is no secret %s", name)
	}
	i := len(r.Versions) - 1
	if version != 0 {
		i = slices.IndexFunc(r.Versions, func(s sealedVersion) bool { return s.Number == version })
	}
	if i < 0 {
		return nil, 0, seat.Errorf(mesh.CodeNotFound, "there is no version %d of %s; versions %d to %d are kept", version, name, r.Versions[0].Number, r.Versions[len(r.Versions)-1].Number)
	}
	s := r.Versions[i]
	value, err = v.box.open(s.Sealed, label("secret", name, s.Number))
	return value, s.Number, err
}

// List lists what may sees, without values.
func (v *Vault) List(may func(name string) bool) (*verbs.SecretsResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	res := &verbs.SecretsResult{Secrets: []verbs.SecretInfo{}, Keys: []verbs.KeyInfo{}}
	names, err := v.names(secretsDir)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !may(name) {
			continue
		}
		var r secretRecord
		if _, err := v.load(secretsDir, name, &r); err != nil {
			return nil, err
		}
		if n := len(r.Versions); n > 0 {
			last := r.Versions[n-1]
			res.Secrets = append(res.Secrets, verbs.SecretInfo{Name: name, Version: last.Number, Versions: n, At: last.At})
		}
	}
	if names, err = v.names(keysDir); err != nil {
		return nil, err
	}
	for _, name := range names {
		if !may(name) {
			continue
		}
		var r keyRecord
		if _, err := v.load(keysDir, name, &r); err != nil {
			return nil, err
		}
		res.Keys = append(res.Keys, verbs.KeyInfo{Name: name, Public: r.Public})
	}
	return res, nil
}
