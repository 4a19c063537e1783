package install

import (
	"encoding/json"
	"fmt"

	"bytes"
	"kingpost/internal/mesh"
	"kingpost/internal/strictjson"
)

// MarkFile is a file on the ESP of a disk that a node has installed itself onto. A node that booted from such a disk
// installs nothing by itself, whatever its node.yaml says; and a medium that finds its own mark on another disk has done its
// work.
const MarkFile = "EFI/kingpost/installed.json"

const (
	markKind = "installation"
	maxMark  = 4 << 10 // bytes
)

// Mark says from what a disk was installed.
type Mark struct {
	Kind    string `json:"kind"`
	Medium  string `json:"medium,omitempty"` // GUID of the disk that it was installed from
	Config  string `json:"config,omitempty"` // SHA-256 of that one's node.yaml
	Root    string `json:"root"`             // root hash of the release
	Release string `json:"release"`          // its version
}

func (k Mark) encode() []byte {
	b, err := json.Marshal(k)
	if err != nil {
		panic(err) // it has only texts
	}
	return append(b, '\n')
}

// ParseMark reads a mark.
func ParseMark(b []byte) (Mark, error) {
	var k Mark
	if err := strictjson.Decode(bytes.NewReader(b), maxMark, &k); err != nil {
		return k, fmt.Errorf("read the mark of an installation: %w", err)
	}
	if k.Kind != markKind {
		return k, fmt.Errorf("read the mark of an installation: it is of the kind %.40q", k.Kind)
	}
	return k, nil
}

// By reports whether the medium with the mark by made the installation with this mark: the same disk, or another one with
// the same release and the same node.yaml.
func (k Mark) By(by Mark) bool {
	return k.Medium != "" && k.Medium == by.Medium || k.Root == by.Root && k.Config == by.Config
}

// then is what is done after an installation.
func then(cfg *mesh.InstallConfig) string { return or(cfg.Then, mesh.ThenReboot) }
