package node

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/tlsid"
)

const fileFrozen = "frozen.json"

// Settings is node.yaml as it counts now.
type Settings struct {
	mesh.NodeConfig
	// Key is the claim key, nil for a node that nobody has claimed.
	Key ed25519.PublicKey
	// Warnings say what in the file does not count, and why.
	Warnings []string
}

// frozen is what of node.yaml stops counting at the first raise or join.
type frozen struct {
	Claim   string              `json:"claim,omitempty"`
	Install *mesh.InstallConfig `json:"install,omitempty"`
	Mesh    mesh.MeshConfig     `json:"mesh,omitzero"`
}

// Load reads node.yaml at path with parse, and what of it is frozen below dir. A file that cannot be read
// or understood is a warning and counts as absent, since a node that does not come up helps nobody; what
// is frozen counts all the same.
func Load(path, dir string, parse func([]byte) (mesh.NodeConfig, error)) (Settings, error) {
	var s Settings
	c, sum, err := read(path, parse)
	if err != nil {
		s.Warnings = append(s.Warnings, fmt.Sprintf("node.yaml does not count: %v", err))
	} else {
		s.NodeConfig = c
	}
	if err := s.disown(dir, sum); err != nil {
		return s, err
	}
	if b, err := os.ReadFile(filepath.Join(dir, fileFrozen)); err == nil {
		var f frozen
		if err := json.Unmarshal(b, &f); err != nil {
			return s, fmt.Errorf("read %s: %w; restore it from a backup", filepath.Join(dir, fileFrozen), err)
		}
		s.freeze(f)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("read the frozen settings: %w", err)
	}
	if s.Claim != "" {
		key, err := tlsid.ParsePublicKey(s.Claim)
		if err != nil {
			s.Warnings = append(s.Warnings, fmt.Sprintf("node.yaml: claim: %v; the node counts as unclaimed", err))
			s.Claim = ""
		}
		s.Key = key
	}
	if s.Hostname != "" {
		if err := mesh.CheckName(s.Hostname); err != nil {
			s.Warnings = append(s.Warnings, fmt.Sprintf("node.yaml: hostname: %v; the node's default name is used", err))
			s.Hostname = ""
		}
	}
	return s, nil
}

// disown takes claim, install and mesh out of a node.yaml that the node had when it was reset: it is nobody's until
// somebody edits the file.
func (s *Settings) disown(dir, sum string) error {
	path := filepath.Join(dir, mesh.FileVoid)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what a reset left: %w", err)
	}
	var r mesh.Reset
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("read %s: %w; remove it to let node.yaml count as it is", path, err)
	}
	if r.NodeConfig == "" || r.NodeConfig != sum {
		return nil
	}
	what := "its install and mesh do"
	claimed := s.Claim
	if !r.KeepClaim {
		s.Claim, what = "", "its claim, install and mesh do"
	}
	if claimed == s.Claim && s.Install == nil && s.NodeConfig.Mesh == (mesh.MeshConfig{}) {
		return nil
	}
	s.Install, s.NodeConfig.Mesh = nil, mesh.MeshConfig{}
	s.Warnings = append(s.Warnings, "node.yaml is the one from before the node was reset, so "+what+" not count; edit the file on the ESP, a comment will do, to have them count again")
	return nil
}

// freeze puts the frozen values in place of those in the file, and warns where they differ.
func (s *Settings) freeze(f frozen) {
	for _, k := range []struct {
		name    string
		differs bool
	}{
		{"claim", s.Claim != f.Claim},
		{"install", !reflect.DeepEqual(s.Install, f.Install)},
		{"mesh", !reflect.DeepEqual(s.Mesh, f.Mesh)},
	} {
		if k.differs {
			s.Warnings = append(s.Warnings, fmt.Sprintf("node.yaml: %s was edited after this node came into its mesh and does not count any more", k.name))
		}
	}
	s.Claim, s.Install, s.Mesh = f.Claim, f.Install, f.Mesh
}

// Freeze keeps claim, install and mesh as they count now, for good. Done again it does nothing.
func (s *Settings) Freeze(dir string) error {
	path := filepath.Join(dir, fileFrozen)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	b, err := json.Marshal(frozen{Claim: s.Claim, Install: s.Install, Mesh: s.Mesh})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(path, b, 0o600); err != nil {
		return fmt.Errorf("freeze the settings of node.yaml: %w", err)
	}
	return nil
}

// read reads node.yaml; sum is the SHA-256 of the file in hex, empty where there is none.
func read(path string, parse func([]byte) (mesh.NodeConfig, error)) (c mesh.NodeConfig, sum string, err error) {
	b, err := ReadConfig(path)
	if err != nil || b == nil {
		return c, "", err
	}
	c, err = parse(b)
	return c, Sum(b), err
}

// ReadConfig reads node.yaml as it is, nil where there is none.
func ReadConfig(path string) ([]byte, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, mesh.MaxNodeConfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > mesh.MaxNodeConfig {
		return nil, fmt.Errorf("it is larger than %d bytes", mesh.MaxNodeConfig)
	}
	return b, nil
}

// Sum is the SHA-256 of a node.yaml in hex.
func Sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}
