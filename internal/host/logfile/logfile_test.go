package logfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "host.log")
	l, err := Open(path, 1000)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 99) + "\n"
	for range 57 {
		if _, err := l.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Write([]byte(line)); err == nil {
		t.Error("a closed log takes a record")
	}
	size := func(p string) int64 {
		fi, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	if a, b := size(path), size(path+".1"); a != 700 || b != 1000 {
		t.Errorf("%d and %d bytes", a, b)
	}
	if l, err = Open(path, 1000); err != nil {
		t.Fatal(err)
	}
	l.Write([]byte(line))
	l.Write([]byte(strings.Repeat(line, 20))) // one record larger than the bound still gets in
	l.Close()
	if a, b := size(path), size(path+".1"); a != 2000 || b != 800 {
		t.Errorf("%d and %d bytes", a, b)
	}
}
