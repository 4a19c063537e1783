package vault

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"time"

	"kingpost/internal/mesh/verbs"
)

// maxMessage bounds what is signed at once, in bytes. What is larger is signed by its digest.
const maxMessage = 1 << 20

// keyRecord is a signing key's file.
type keyRecord struct {
	At     time.Time `json:"at"`
	Public string    `json:"public"` // "ed25519:" and the base64 of its PKIX form (RFC 8410)
	Sealed []byte    `json:"sealed"` // the seed, RFC 8032 section 5.1.5
}

// Sign signs message by the key name (RFC 8032, Ed25519). The key is made when it is first used; it is on
// disk before anything signed by it goes out.
func (v *Vault) Sign(name string, message []byte) (*verbs.SignResult, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	var r keyRecord
	known, err := v.load(keysDir, name, &r)
	if err != nil {
		return nil, err
	}
	var key ed25519.PrivateKey
	if known {
		seed, err := v.box.open(r.Sealed, label("key", name, 1))
		if err != nil {
			return nil, err
		}
		if len(seed) != ed25519.SeedSize {
			return nil, fmt.Errorf("key %s does not open: it has the wrong size", name)
		}
		key = ed25519.NewKeyFromSeed(seed)
	} else {
		var pub ed25519.PublicKey
		if pub, key, err = ed25519.GenerateKey(rand.Reader); err != nil {
			return nil, fmt.Errorf("make the key %s: %w", name, err)
		}
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			return nil, fmt.Errorf("make the key %s: %w", name, err)
		}
		r = keyRecord{At: v.now().UTC(), Public: "ed25519:" + base64.StdEncoding.EncodeToString(der), Sealed: v.box.seal(key.Seed(), label("key", name, 1))}
		if err := v.keep(keysDir, name, true, &r); err != nil {
			return nil, err
		}
	}
	return &verbs.SignResult{Name: name, Signature: ed25519.Sign(key, message), Public: r.Public}, nil
}
