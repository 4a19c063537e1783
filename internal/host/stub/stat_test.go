package stub

import (
	"os"
	"testing"
)

func FuzzStat(f *testing.F) {
	b, _ := os.ReadFile("/proc/self/stat")
	f.Add(b)
	f.Add([]byte("1 (a) b) S 1 1"))
	f.Fuzz(func(t *testing.T, b []byte) { _, _ = parseStat(b) })
}
