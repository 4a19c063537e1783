package tlsid

import (
	"crypto"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
)

// keyPrefix starts a public key in text, as in node.yaml's claim.
const keyPrefix = "ed25519:"

// Fingerprint names a public key for people: "SHA256:" and the unpadded base64 of the SHA-256 of its
// PKIX form, in the manner of OpenSSH. It panics on a key that has no PKIX form.
func Fingerprint(pub crypto.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		panic(fmt.Sprintf("fingerprint of a %T: %v", pub, err))
	}
	return fingerprintDER(der)
}

// FingerprintOf is the fingerprint of a certificate's public key.
func FingerprintOf(c *x509.Certificate) string { return fingerprintDER(c.RawSubjectPublicKeyInfo) }

func fingerprintDER(spki []byte) string {
	sum := sha256.Sum256(spki)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// IsFingerprint says whether s has the form of a fingerprint; padding and surrounding space do not count.
func IsFingerprint(s string) bool {
	sum, ok := strings.CutPrefix(strings.TrimRight(strings.TrimSpace(s), "="), "SHA256:")
	raw, err := base64.RawStdEncoding.DecodeString(sum)
	return ok && err == nil && len(raw) == sha256.Size
}

// SameFingerprint compares two fingerprints; padding and surrounding space, as a paste may bring, do not count.
func SameFingerprint(a, b string) bool {
	clean := func(s string) string { return strings.TrimRight(strings.TrimSpace(s), "=") }
	return subtle.ConstantTimeCompare([]byte(clean(a)), []byte(clean(b))) == 1
}

// FormatPublicKey writes a key in the form of mesh.NodeConfig.Claim: "ed25519:" and the base64 of its
// PKIX form (RFC 8410).
func FormatPublicKey(pub ed25519.PublicKey) string {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		panic(fmt.Sprintf("ed25519 key: %v", err))
	}
	return keyPrefix + base64.StdEncoding.EncodeToString(der)
}

// ParsePublicKey reads the form that FormatPublicKey writes.
func ParsePublicKey(s string) (ed25519.PublicKey, error) {
	const want = "want ed25519: and the base64 of the key's PKIX form, as `kingpost` prints it"
	rest, ok := strings.CutPrefix(strings.TrimSpace(s), keyPrefix)
	if !ok {
		return nil, fmt.Errorf("public key %.20q: %s", s, want)
	}
	if len(rest) > 256 {
		return nil, fmt.Errorf("public key with %d characters: %s", len(rest), want)
	}
	der, err := base64.StdEncoding.DecodeString(rest)
	if err != nil {
		return nil, fmt.Errorf("public key: %w; %s", err, want)
	}
	k, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("public key: %w; %s", err, want)
	}
	pub, ok := k.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("public key is a %T; %s", k, want)
	}
	return pub, nil
}

// MarshalPrivateKey writes a private key as PKCS #8 PEM (RFC 5958).
func MarshalPrivateKey(key ed25519.PrivateKey) []byte {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		panic(fmt.Sprintf("ed25519 key: %v", err))
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// ParsePrivateKey reads what MarshalPrivateKey wrote. Its errors never hold key material.
func ParsePrivateKey(b []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("private key: no PEM block PRIVATE KEY in it")
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("private key: not in PKCS #8 form")
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("private key is a %T, want an ed25519 key", k)
	}
	return key, nil
}

// EncodeCertificate writes a certificate in DER as PEM.
func EncodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// ParseCertificate reads the first certificate of PEM text.
func ParseCertificate(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("certificate: no PEM block CERTIFICATE in it")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return c, nil
}
