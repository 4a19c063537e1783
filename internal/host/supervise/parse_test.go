package supervise

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	var total time.Duration
	for n := 1; n < maxFailures; n++ {
		if delay(n) > maxDelay || n > 1 && delay(n) < delay(n-1) {
			t.Errorf("delay %d is %s", n, delay(n))
		}
		total += delay(n)
	}
	// A resource that fails at once is held after a time that somebody waits for.
	if total < 30*time.Second || total > 5*time.Minute {
		t.Errorf("held after %s", total)
	}
	// And the limit is reached even by one that runs almost long enough each time: only a run that was well
	// for resetAfter takes failures back.
	if resetAfter < maxDelay {
		t.Error("a run shorter than the longest delay must not reset the count")
	}
}

func FuzzState(f *testing.F) {
	f.Add([]byte(`{"format":1,"epoch":3,"units":{"m/a":{"failures":2,"held":true}}}`))
	f.Add([]byte(`{"units":{"m/a":null,"m/b":null}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := filepath.Join(t.TempDir(), "state.json")
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, _, err := openState(p)
		if err != nil {
			t.Fatalf("a bad state file keeps the host from starting: %v", err)
		}
		if err := s.unit("m/a", func(u *unitState) { u.Failures++ }); err != nil {
			t.Fatal(err)
		}
		again, warning, err := openState(p)
		if err != nil || warning != "" || again.get("m/a").Failures != s.get("m/a").Failures {
			t.Fatalf("what was written cannot be read: %v %s", err, warning)
		}
	})
}

func FuzzExitRecord(f *testing.F) {
	f.Add([]byte(`{"pid":1,"start":2,"cgroup":"/x","code":0}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := newExits(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		e.watch(procID{1, 2})
		if err := os.WriteFile(filepath.Join(e.dir, "1-2.json"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		e.read("1-2.json")
		e.read("1-2.json")
	})
}

func FuzzLogLine(f *testing.F) {
	f.Add([]byte("2026-12-01T00:00:00.000000Z text\n"))
	f.Fuzz(func(t *testing.T, b []byte) { parseLine(b) })
}
