package supervise

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	if len(es) != logFiles || total > bound {
		t.Errorf("%d files with %d bytes", len(es), total)
	}
	lines := partOf(t, filepath.Join(dir, "files"), LogOptions{})
	if end := lines[len(lines)-1]; !strings.HasSuffix(end, "last, without an end") {
		t.Errorf("the end is %q", end)
	}
	if len(lines) < 15_000 {
		t.Errorf("only %d lines are kept", len(lines))
	}
	at, ok := parseLine([]byte(lines[len(lines)-100]))
	if !ok {
		t.Fatalf("a line is %q", lines[len(lines)-100])
	}
	since := partOf(t, filepath.Join(dir, "files"), LogOptions{Since: at})
	if len(since) < 100 || len(since) > len(lines)/2 {
		t.Errorf("since: %d lines", len(since))
	}
	some := partOf(t, filepath.Join(dir, "files"), LogOptions{Bytes: 1000})
	if len(some) == 0 || len(some) > 5 {
		t.Errorf("the last 1000 bytes: %d lines", len(some))
	}
}

// TestLogBytesOfLongLine: the last bytes are those of a line that began before them.
func TestLogBytesOfLongLine(t *testing.T) {
	dir := t.TempDir()
	line := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).Format(logTime) + " " + strings.Repeat("x", 100_000) + "end\n"
	if err := os.WriteFile(logPath(dir, 0), []byte(line), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int64{1, 4, 100, 70_000} {
		if got := strings.Join(partOf(t, dir, LogOptions{Bytes: n}), ""); got != strings.TrimSuffix(line[int64(len(line))-n:], "\n") {
			t.Errorf("the last %d bytes: %d bytes, %.20q...", n, len(got), got)
		}
	}
	if got := partOf(t, dir, LogOptions{Bytes: 100, Since: time.Date(2026, 12, 2, 0, 0, 0, 0, time.UTC)}); len(got) != 1 || got[0] != "" {
		t.Errorf("of a line whose time is not known: %.40q", got)
	}
}

// partOf is what a reader of a log gets, by lines.
func partOf(t *testing.T, dir string, o LogOptions) []string {
	t.Helper()
	p, err := openPart(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	var b strings.Builder
	if err := mergeLogs(&b, []*logPart{p}); err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// TestLogLong: a line of 10 MB and bytes that are no text come out as they went in, between lines of others in their order.
func TestLogLong(t *testing.T) {
	dir := t.TempDir()
	s := &Supervisor{cfg: Config{State: dir}, units: map[string]*unit{}}
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	clock := func() time.Time { now = now.Add(time.Millisecond); return now }
	long := bytes.Repeat([]byte{'y', 0, 0xff, 0x1b}, 10<<20/4)
	write := func(key string, chunks ...[]byte) {
		t.Helper()
		fifo := filepath.Join(dir, nameOf(key)+".fifo")
		l, err := startLog(fifo, s.logDir(key), clock, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		w, err := os.OpenFile(fifo, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for _, c := range chunks {
			if _, err := w.Write(c); err != nil {
				t.Fatal(err)
			}
		}
	}
	write("m/a", []byte("a first\n"))
	write("m/b", []byte("b first\n"), long, []byte("\n"))
	write("m/a", []byte("a last\n"))
	var out bytes.Buffer
	if err := s.copyLogs(t.Context(), &out, []string{"m/a", "m/b"}, LogOptions{}); err != nil {
		t.Fatal(err)
	}
	var texts [][]byte
	for _, line := range bytes.Split(bytes.TrimSuffix(out.Bytes(), []byte("\n")), []byte("\n")) {
		if _, ok := parseLine(line); !ok {
			t.Fatalf("a line has no time: %.60q", line)
		}
		texts = append(texts, line[len(logTime)+1:])
	}
	want := [][]byte{[]byte("a first"), []byte("b first"), long, []byte("a last")}
	if len(texts) != len(want) {
		t.Fatalf("%d lines came back, wanted %d", len(texts), len(want))
	}
	for i := range want {
		if !bytes.Equal(texts[i], want[i]) {
			t.Errorf("line %d has %d bytes, %.40q; wanted %d", i, len(texts[i]), texts[i], len(want[i]))
		}
	}
}

// TestLogDiskFull: a log that cannot be written loses lines and never keeps its writer waiting; with room it goes on.
func TestLogDiskFull(t *testing.T) {
	cgroupRoot(t) // in a mount namespace of its own
	dir := t.TempDir()
	files := filepath.Join(dir, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", files, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	defer unmount(files)
	fifo := filepath.Join(dir, "m.a.fifo")
	var warned atomic.Int32
	l, err := startLog(fifo, files, time.Now, func(string, ...any) { warned.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	w, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	line := strings.Repeat("x", 1000)
	for range 4000 { // four times what there is room for
		fmt.Fprintln(w, line)
	}
	for i := 0; warned.Load() == 0; i++ {
		if i == 100 {
			t.Fatal("nobody was told")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := unix.Mount("tmpfs", files, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		fmt.Fprintln(w, "room again")
		b, _ := os.ReadFile(logPath(files, 0))
		if strings.Contains(string(b), "room again") {
			break
		}
		if i == 200 {
			t.Fatal("it does not go on")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if n := warned.Load(); n > 3 {
		t.Errorf("it was said %d times", n)
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
