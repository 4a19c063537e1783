package vault

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"kingpost/internal/atomicfile"
)

const (
	keyFile = "key"
	keySize = 32 // bytes, AES-256
)

// box seals and opens. NIST SP 800-38D, with random 96-bit nonces: good for 2^32 values under one key.
type box struct{ aead cipher.AEAD }

// openBox reads the key file in dir, or makes it where the vault is still empty.
func openBox(dir string, empty bool) (*box, error) {
	path := filepath.Join(dir, keyFile)
	key, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && empty:
		key = make([]byte, keySize)
		rand.Read(key) // never fails since Go 1.24
		if err := atomicfile.Write(path, key, 0o600); err != nil {
			return nil, fmt.Errorf("keep the vault's key: %w", err)
		}
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the vault's key %s is missing, and what is sealed cannot be opened without it: restore the file", path)
	case err != nil:
		return nil, fmt.Errorf("read the vault's key: %w", err)
	case len(key) != keySize:
		return nil, fmt.Errorf("the vault's key %s has %d bytes, not %d: restore the file", path, len(key), keySize)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &box{aead}, nil
}

// seal seals value for one place; label names it.
func (b *box) seal(value []byte, label string) []byte {
	return b.aead.Seal(nil, nil, value, []byte(label))
}

// open opens what was sealed for label.
func (b *box) open(sealed []byte, label string) ([]byte, error) {
	value, err := b.aead.Open(nil, nil, sealed, []byte(label))
	if err != nil {
		return nil, fmt.Errorf("%s does not open: its file is damaged, or belongs to another name, version or key", label)
	}
	return value, nil
}
