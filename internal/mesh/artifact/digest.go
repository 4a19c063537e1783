package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"
)

// DigestError tells that content is not what its digest says.
type DigestError struct {
	Want, Got string
}

func (e *DigestError) Error() string {
	return fmt.Sprintf("content hashes to %s, wanted %s: it is damaged or was replaced", e.Got, e.Want)
}

// CheckDigest accepts "sha256:" and 64 lower-case hex digits, the only algorithm in use here.
func CheckDigest(d string) error {
	h, ok := strings.CutPrefix(d, "sha256:")
	if !ok {
		return fmt.Errorf("digest %.80q does not start with \"sha256:\"", d)
	}
	if len(h) != 2*sha256.Size || strings.ToLower(h) != h {
		return fmt.Errorf("digest %.80q is not sha256: and 64 lower-case hex digits", d)
	}
	if _, err := hex.DecodeString(h); err != nil {
		return fmt.Errorf("digest %.80q is not sha256: and 64 lower-case hex digits", d)
	}
	return nil
}

// DigestOf returns the digest of b.
func DigestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func digestString(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }

// VerifyReader wraps rc so that its end is io.EOF only if exactly size bytes were read and they hash to digest.
func VerifyReader(rc io.ReadCloser, digest string, size int64) io.ReadCloser {
	return &verifyReader{rc: rc, digest: digest, left: size, h: sha256.New()}
}

type verifyReader struct {
	rc     io.ReadCloser
	digest string
	left   int64
	h      hash.Hash
	err    error
}

func (v *verifyReader) Read(p []byte) (int, error) {
	if v.err != nil {
		return 0, v.err
	}
	n, err := v.rc.Read(p)
	if int64(n) > v.left {
		v.err = fmt.Errorf("blob %s is longer than its descriptor says", v.digest)
		return 0, v.err
	}
	v.h.Write(p[:n])
	v.left -= int64(n)
	if err == io.EOF {
		switch got := digestString(v.h); {
		case v.left > 0:
			err = fmt.Errorf("blob %s ends %d bytes early: %w", v.digest, v.left, io.ErrUnexpectedEOF)
		case got != v.digest:
			err = &DigestError{Want: v.digest, Got: got}
		}
	}
	if err != nil {
		v.err = err
	}
	return n, err
}

func (v *verifyReader) Close() error { return v.rc.Close() }

// readAll reads a small verified object of unknown size, at most limit bytes.
func readAll(r io.Reader, digest string, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", digest, limit)
	}
	if got := DigestOf(b); got != digest {
		return nil, &DigestError{Want: digest, Got: got}
	}
	return b, nil
}
