package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"kingpost/internal/atomicfile"
)

// Accounts are numbered from firstUID to lastUID. A number is given once and never again, since files
// on the data partition may still carry it.
const (
	firstUID = 20000
	lastUID  = 59999
)

// accounts binds account keys ("MODULE" or "MODULE/NAME") to numbers, the same for uid and gid, on disk.
type accounts struct {
	path string
	mu   sync.Mutex
	Next int            `json:"next"`
	UIDs map[string]int `json:"uids"`
}

func openAccounts(path string) (*accounts, error) {
	a := &accounts{path: path, Next: firstUID, UIDs: map[string]int{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, nil
	}
	if err == nil {
		err = json.Unmarshal(b, a)
	}
	if err != nil {
		// Guessing would hand one module's files to another.
		return nil, fmt.Errorf("read the accounts in %s: %w; restore the file from a backup, or remove it together with the volumes", path, err)
	}
	for _, uid := range a.UIDs {
		a.Next = max(a.Next, uid+1)
	}
	return a, nil
}

// uid returns the number of an account, making one at first.
func (a *accounts) uid(key string) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if uid, ok := a.UIDs[key]; ok {
		return uid, nil
	}
	if a.Next > lastUID {
		return 0, fmt.Errorf("make an account for %s: all numbers up to %d are given out", key, lastUID)
	}
	uid := a.Next
	a.UIDs[key], a.Next = uid, uid+1
	b, err := json.MarshalIndent(a, "", " ")
	if err == nil {
		err = atomicfile.Write(a.path, b, 0o600)
	}
	if err != nil {
		delete(a.UIDs, key)
		return 0, fmt.Errorf("make an account for %s: %w", key, err)
	}
	return uid, nil
}

// module is the module whose account has uid.
func (a *accounts) module(uid int) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, u := range a.UIDs {
		if u == uid {
			m, _, _ := strings.Cut(k, "/")
			return m, true
		}
	}
	return "", false
}

// accountName is the name an account has inside a workload's /etc/passwd.
func accountName(key string) string { return strings.ReplaceAll(key, "/", ".") }
