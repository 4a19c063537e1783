package stub

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// StartTime, which tells a process from a later one with its PID, is field 22 of /proc/PID/stat, in clock ticks since boot (proc_pid_stat(5)).
func StartTime(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	start, err := parseStat(b)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return start, nil
}

func parseStat(b []byte) (uint64, error) {
	// The second field is in parentheses and may hold anything, blanks and parentheses included.
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return 0, errors.New("it has no command")
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return 0, fmt.Errorf("it has %d fields", len(f))
	}
	return strconv.ParseUint(string(f[19]), 10, 64)
}
