package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestClockFloor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "clock-synced")
	for _, tc := range []struct{ name, date, file, want string }{
		{"neither", "", "", "0001-01-01"},
		{"the release's date", "2026-12-01", "", "2026-12-01"},
		{"confirmed later", "2026-12-01", "1798761600\n", "2027-01-01"},
		{"confirmed before this release was made", "2026-12-01", "1700000000", "2026-12-01"},
		{"rubbish", "2026-12-01", "\x00\x00", "2026-12-01"},
		{"half a number", "2026-12-01", "17987", "2026-12-01"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			os.Remove(path)
			if tc.file != "" {
				if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := clockFloor(tc.date, path).Format("2006-01-02"); got != tc.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
