package lab

import (
	"context"
	"fmt"
	"os"

	"kingpost/internal/qemu"
	"kingpost/internal/qemu/writelog"
)

// Recorded is how many bytes of the node's writes have been recorded by now.
func (n *Node) Recorded() (int64, error) {
	st, err := os.Stat(n.Log)
	if err != nil {
		return 0, fmt.Errorf("the recording of node %s: %w", n.Name, err)
	}
	return st.Size(), nil
}

// CutDisk writes to path the disk that a power cut would have left when recorded bytes of the node's writes had been
// made: what was flushed by then is on it, of the rest a part that seed decides. base is the disk as it was at the
// node's boot.
func CutDisk(ctx context.Context, path, base, log string, recorded int64, seed uint64) (writelog.Report, error) {
	in, err := os.Open(log)
	if err != nil {
		return writelog.Report{}, err
	}
	defer in.Close()
	st, err := in.Stat()
	if err != nil {
		return writelog.Report{}, err
	}
	l, err := writelog.Read(in, st.Size())
	if err != nil {
		return writelog.Report{}, err
	}
	if err := qemu.Copy(ctx, path, base, 0); err != nil {
		return writelog.Report{}, err
	}
	out, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return writelog.Report{}, err
	}
	r, err := l.Cut(out, l.At(recorded), seed)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	return r, err
}
