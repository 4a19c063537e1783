package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/artifact"
)

// blobFrom is a source that can go on in the middle of a blob.
type blobFrom interface {
	BlobFrom(ctx context.Context, ref mesh.Ref, digest string, size, offset int64) (io.ReadCloser, error)
}

// resumed is a source whose blobs come to disk first: what is there of one is not fetched again, not even by the next host
// or after a power cut. They are verified as they are read from there.
type resumed struct {
	artifact.Source
	from blobFrom
	c    *content
}

// smallBlob is what is not worth a file, in bytes.
const smallBlob = 256 << 10

func (r *resumed) Blob(ctx context.Context, ref mesh.Ref, digest string, size int64) (io.ReadCloser, error) {
	if size <= smallBlob {
		return r.Source.Blob(ctx, ref, digest, size)
	}
	path := filepath.Join(r.c.partsDir(), strings.Replace(digest, ":", "-", 1))
	unlock := r.c.lock(path)
	f, err := r.download(ctx, path, ref, digest, size)
	if err != nil {
		unlock()
		return nil, err
	}
	b := &part{f: f, digest: digest, unlock: unlock}
	b.verified = artifact.VerifyReader(io.NopCloser(f), digest, size)
	return b, nil
}

func (c *content) partsDir() string { return filepath.Join(c.dir, "fetching") }

// download has the whole of a blob in the file at path, as far as its size tells.
func (r *resumed) download(ctx context.Context, path string, ref mesh.Ref, digest string, size int64) (f *os.File, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	if have > size {
		have = 0
		if err := f.Truncate(0); err != nil {
			return nil, err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
	}
	if have < size {
		if _, err := r.c.room(size - have); err != nil {
			return nil, err
		}
		blob, err := r.from.BlobFrom(ctx, ref, digest, size, have)
		if err != nil {
			return nil, err
		}
		n, err := io.Copy(f, io.LimitReader(blob, size-have+1))
		if err := errors.Join(err, blob.Close()); err != nil {
			return nil, fmt.Errorf("%d of %d bytes of %s are here: %w", have+n, size, shortDigest(digest), err)
		}
	}
	_, err = f.Seek(0, io.SeekStart)
	return f, err
}

// part is a blob on disk that is being read. It goes when it was read whole, or is not what it should be: a power cut may
// leave zeros where bytes were. One that is right and whose reader gave up, for want of room or time, stays for the next.
type part struct {
	f        *os.File
	digest   string
	verified io.ReadCloser
	unlock   func()
	over     bool
}

func (p *part) Read(b []byte) (int, error) {
	n, err := p.verified.Read(b)
	p.over = p.over || err != nil
	return n, err
}

func (p *part) Close() error {
	var err error
	if p.over || !p.right() {
		err = os.Remove(p.f.Name())
	}
	err = errors.Join(err, p.f.Close())
	p.unlock()
	return err
}

// right reads the whole of it once more.
func (p *part) right() bool {
	if _, err := p.f.Seek(0, io.SeekStart); err != nil {
		return false
	}
	h := sha256.New()
	if _, err := io.Copy(h, p.f); err != nil {
		return false
	}
	return "sha256:"+hex.EncodeToString(h.Sum(nil)) == p.digest
}
