package builder

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// hashStrings is the hex SHA-256 of strings, each with its length, so that no two lists are the same.
func hashStrings(s ...string) string {
	h := sha256.New()
	for _, x := range s {
		fmt.Fprintf(h, "%d:", len(x))
		io.WriteString(h, x)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hashFile is the hex SHA-256 of a file and its size in bytes.
func hashFile(ctx context.Context, name string) (string, int64, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.CopyBuffer(h, struct{ io.Reader }{ctxReader{ctx, f}}, make([]byte, 1<<20))
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// ctxReader ends a long copy when ctx ends.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

func hashBytes(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
