package inspect

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"syscall"
)

// differs says how a file differs from what release.json has of it, or nothing.
func differs(ctx context.Context, name string, want File) string {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hold us up
	if err != nil {
		return "is missing"
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, reader{ctx, f})
	switch {
	case err != nil:
		return err.Error()
	case n != want.Size:
		return fmt.Sprintf("has %d bytes, release.json says %d", n, want.Size)
	case hex.EncodeToString(h.Sum(nil)) != want.SHA256:
		return "has other bytes than release.json says"
	}
	return ""
}

// reader ends a long copy when ctx ends.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (c reader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}
