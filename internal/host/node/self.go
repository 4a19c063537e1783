package node

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh/tlsid"
)

const (
	fileKey = "key.pem"
	fileID  = "id"
	idBytes = 16
)

// Self is a node's own key and id. They are made once and never change.
type Self struct {
	ID          string // hex
	Key         ed25519.PrivateKey
	Fingerprint string // of the key, as the console shows it
	// Certificate is signed by the key itself; it serves until the node is in a mesh.
	Certificate tls.Certificate
}

// Open reads the node's key and id below dir, and makes them at the first boot. A key that is there but
// cannot be read is an error and never replaced: others have pinned it.
func Open(dir string) (*Self, error) {
	if err := atomicfile.PrivateDir(dir); err != nil {
		return nil, fmt.Errorf("prepare the node's folder: %w", err)
	}
	pem, err := kept(filepath.Join(dir, fileKey), func() ([]byte, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		return tlsid.MarshalPrivateKey(key), nil
	})
	if err != nil {
		return nil, fmt.Errorf("the node's key: %w", err)
	}
	key, err := tlsid.ParsePrivateKey(pem)
	if err != nil {
		return nil, fmt.Errorf("the node's key in %s is damaged (%w): restore it from a backup, or remove it to give the node a new one, which everybody who knows this node must then accept", filepath.Join(dir, fileKey), err)
	}
	id, err := kept(filepath.Join(dir, fileID), func() ([]byte, error) {
		b := make([]byte, idBytes)
		rand.Read(b) // never fails
		return []byte(hex.EncodeToString(b) + "\n"), nil
	})
	if err != nil {
		return nil, fmt.Errorf("the node's id: %w", err)
	}
	s := &Self{ID: strings.TrimSpace(string(id)), Key: key, Fingerprint: tlsid.Fingerprint(key.Public())}
	if b, err := hex.DecodeString(s.ID); err != nil || len(b) != idBytes {
		return nil, fmt.Errorf("the node's id in %s is damaged: want %d hex digits; remove the file to give the node a new one", filepath.Join(dir, fileID), 2*idBytes)
	}
	if s.Certificate, err = tlsid.SelfSigned(key, DefaultName(s.ID)); err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	return s, nil
}

// DefaultName is the name of a node that was given none.
func DefaultName(id string) string { return "kp-" + id[:6] }

// kept reads path, and writes what fresh gives when it is not there.
func kept(path string, fresh func() ([]byte, error)) ([]byte, error) {
	b, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	if b, err = fresh(); err != nil {
		return nil, err
	}
	return b, atomicfile.Write(path, b, 0o600)
}
