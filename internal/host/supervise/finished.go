package supervise

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// A run that is not to be made again before the node starts again is noted below mesh.PathRun, which ends with the boot:
// so the next host, which cannot observe it, does not make it either.

// finishedRun is a run that has ended.
type finishedRun struct {
	Spec string `json:"spec"` // its id
	Code int    `json:"code"`
}

func (u *unit) finishedPath() string { return filepath.Join(u.s.cfg.Run, "finished", u.name+".json") }

// finished says how the spec with this id ended in this boot.
func (u *unit) finished(id string) (code int, ended bool) {
	b, err := os.ReadFile(u.finishedPath())
	var f finishedRun
	if err != nil || json.Unmarshal(b, &f) != nil || f.Spec != id {
		return 0, false
	}
	return f.Code, true
}

func (u *unit) finishedWith(id string, code int) {
	b, err := json.Marshal(finishedRun{id, code})
	if err == nil {
		err = u.s.cfg.write(u.finishedPath(), b, 0o600)
	}
	if err != nil {
		u.s.warn("note that %s has ended: %v", u.key, err)
	}
}

func (u *unit) unfinish() { os.Remove(u.finishedPath()) }
