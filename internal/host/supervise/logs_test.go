package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLogFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "log", "m.a.fifo")
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	l, err := startLog(fifo, filepath.Join(dir, "files"), func() time.Time { now = now.Add(time.Second); return now }, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	const bound = 4 << 20
	l.bound(bound)
	w, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// Binary, a long line, and more than all files hold together.
	fmt.Fprint(w, "first\n\x00\xff\x1b[31m\n")
	long := strings.Repeat("y", 300_000)
	fmt.Fprintln(w, long)
	line := strings.Repeat("x", 200)
	for i := range 30_000 {
		fmt.Fprintln(w, i, line)
	}
	fmt.Fprint(w, "last, without an end")
	l.close()
	es, err := os.ReadDir(filepath.Join(dir, "files"))
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, e := range es {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if len(es) != logFiles || total > bound+logFiles*2*logBuffer {
		t.Errorf("%d files with %d bytes", len(es), total)
	}
	lines, err := readLines(filepath.Join(dir, "files"), LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if end := lines[len(lines)-1].text; !bytes.HasSuffix(end, []byte("last, without an end")) {
		t.Errorf("the end is %q", end)
	}
	if len(lines) < 15_000 {
		t.Errorf("only %d lines are kept", len(lines))
	}
	since, err := readLines(filepath.Join(dir, "files"), LogOptions{Since: lines[len(lines)-100].at})
	if err != nil || len(since) < 100 || len(since) > len(lines)/2 {
		t.Errorf("since: %d lines, %v", len(since), err)
	}
	some, err := readLines(filepath.Join(dir, "files"), LogOptions{Bytes: 1000})
	if err != nil || len(some) == 0 || len(some) > 5 {
		t.Errorf("the last 1000 bytes: %d lines, %v", len(some), err)
	}
}

// TestLogAcrossHosts: what is written while there is no host is there when the next one comes.
func TestLogAcrossHosts(t *testing.T) {
	dir := t.TempDir()
	fifo, files := filepath.Join(dir, "log", "m.a.fifo"), filepath.Join(dir, "files")
	l, err := startLog(fifo, files, time.Now, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	w, err := os.OpenFile(fifo, os.O_RDWR, 0) // as a workload, or PID 1, holds it
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	fmt.Fprintln(w, "before")
	l.close()
	fmt.Fprintln(w, "between")
	if l, err = startLog(fifo, files, time.Now, t.Logf); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "after")
	l.close()
	b, err := os.ReadFile(logPath(files, 0))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before", "between", "after"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%q is lost: %s", want, b)
		}
	}
}

func TestLogFollow(t *testing.T) {
	n := newNode(t)
	n.declare(n.process("a", "look"), n.process("b", "flood"))
	n.settled()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := n.s.Logs(ctx, "m", LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	// Through at least one rotation, with every line whole.
	buf := make([]byte, 0, 8<<20)
	tmp := make([]byte, 64<<10)
	for len(buf) < 6<<20 {
		m, err := r.Read(tmp)
		if err != nil {
			t.Fatal(err)
		}
		buf = append(buf, tmp[:m]...)
	}
	cancel()
	_, _ = io.Copy(io.Discard, r)
	bad := 0
	for _, line := range strings.Split(string(buf[:bytes.LastIndexByte(buf, '\n')]), "\n") {
		if _, ok := parseLine([]byte(line)); !ok {
			bad++
		}
	}
	// A follower that is slower than a flood loses whole files to the rotation, never half lines but at their seams.
	if bad > 2*logFiles {
		t.Errorf("%d lines are torn", bad)
	}
	if _, err := n.s.Logs(ctx, "../m", LogOptions{}); err == nil {
		t.Error("a path was taken for a module")
	}
}
