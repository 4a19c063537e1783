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

// accountsFormat is the version of accounts.json, raised by a change that an older host would get wrong.
const accountsFormat = 1

// accounts binds account keys ("MODULE" or "MODULE/NAME") to numbers, the same for uid and gid, on disk.
type accounts struct {
	path   string
	mu     sync.Mutex
	Format int            `json:"format,omitempty"`
	Next   int            `json:"next"`
	UIDs   map[string]int `json:"uids"`
}

// openAccounts reads the accounts. A file that cannot be read is set aside and made anew from who owns the volumes and who
// runs, which the warning says: to guess would hand one module's files to another.
func openAccounts(path, volumes string, runs []*runRecord) (a *accounts, warning string, err error) {
	a = &accounts{path: path, Next: firstUID, UIDs: map[string]int{}}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return a, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the accounts: %w", err)
	}
	if err = json.Unmarshal(b, a); err == nil && a.Format > accountsFormat {
		err = fmt.Errorf("its format %d is newer than %d, which this host knows", a.Format, accountsFormat)
	}
	if err != nil {
		found, highest, werr := ownersOf(volumes)
		if werr != nil {
			return nil, "", fmt.Errorf("read the accounts in %s: %w; nor can they be made anew: %w", path, err, werr)
		}
		a.Next, a.UIDs = max(firstUID, highest+1), found
		for _, r := range runs {
			if r.UID >= firstUID && r.UID <= lastUID {
				a.UIDs[r.Spec.account()] = r.UID
			}
		}
		warning = fmt.Sprintf("the accounts in %s cannot be read (%v), %s; they were made anew from the owners of volumes and of what runs, %d of them", path, err, setAside(path, ".bad"), len(a.UIDs))
	}
	a.Format = accountsFormat
	for _, uid := range a.UIDs {
		a.Next = max(a.Next, uid+1)
	}
	if warning != "" {
		// The numbers that are only seen now may be gone from sight at the next start.
		if b, err := json.MarshalIndent(a, "", " "); err == nil {
			if err := atomicfile.Write(path, b, 0o600); err != nil {
				warning += fmt.Sprintf("; they cannot be kept: %v", err)
			}
		}
	}
	return a, warning, nil
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
