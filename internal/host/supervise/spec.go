package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// spec is everything that decides how one resource runs: the declared resource, the content of the
// files that it mounts, and where it is. It is what a handover goes from and to, so it can be kept on
// disk and started again when the declaration has long moved on.
type spec struct {
	mesh.Declared
	FileContent map[string]fileContent `json:"fileContent,omitempty"` // by file ID
	Mesh        string                 `json:"mesh"`
	Node        string                 `json:"node"`

	// slot tells two instances of one resource apart while the one takes over from the other: "" or otherSlot. It belongs
	// to what runs (runRecord.Slot), not to what is declared.
	slot string
}

const otherSlot = "b"

// in is sp as the instance in slot.
func (sp *spec) in(slot string) *spec {
	if sp.slot == slot {
		return sp
	}
	c := *sp
	c.slot = slot
	return &c
}

// fileContent is a file resource as a mount needs it.
type fileContent struct {
	Content string `json:"content"`
	Mode    string `json:"mode,omitempty"`
}

// specsOf resolves the declaration into one spec per key.
func specsOf(d *mesh.Declaration) map[string]*spec {
	out := make(map[string]*spec, len(d.Resources))
	files := map[string]*mesh.Declared{}
	for i := range d.Resources {
		if r := &d.Resources[i]; r.Type == mesh.KindFile {
			files[r.Key()] = r
		}
	}
	for i := range d.Resources {
		r := &d.Resources[i]
		if r.Module == mesh.HostModule {
			continue // the launcher's, see Own
		}
		sp := &spec{Declared: *r, Mesh: d.Mesh, Node: d.Node}
		for _, m := range r.Files {
			if f := files[r.Module+"/"+m.File]; f != nil {
				if sp.FileContent == nil {
					sp.FileContent = map[string]fileContent{}
				}
				sp.FileContent[m.File] = fileContent{f.Content, f.Mode}
			}
		}
		out[r.Key()] = sp
	}
	return out
}

// id identifies a spec: two with the same id are the same thing to run, from the same source.
func (sp *spec) id() string { return sp.hash(sp.Source) }

// verdict identifies a spec together with the check by which it was found to fail: a corrected check is another try.
func (sp *spec) verdict() string {
	checks := []any{sp.Health}
	if sp.Ready != nil {
		checks = append(checks, sp.Ready)
	}
	b := []byte(sp.id())
	for _, c := range checks {
		j, err := json.Marshal(c)
		if err != nil {
			panic("supervise: a health check always marshals: " + err.Error())
		}
		b = append(b, j...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (sp *spec) hash(source mesh.Source) string {
	c := *sp
	c.Source = source
	// What can be changed while it runs is no part of what it is.
	c.Limits, c.Health, c.Policy, c.Stop, c.After, c.Critical, c.Size = mesh.Limits{}, nil, "", mesh.Stop{}, nil, false, 0
	c.Ready, c.Handover = nil, ""
	c.Env = nil // a map marshals sorted, but an empty one must equal none
	b, err := json.Marshal(struct {
		*spec
		Env map[string]string `json:"environment,omitempty"`
	}{&c, sp.Env})
	if err != nil {
		panic("supervise: a spec always marshals: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// satisfies reports whether what runs as sp, from source, is what want asks for.
func (sp *spec) satisfies(source mesh.Source, want *spec) bool {
	if want.Source != mesh.SourceAny && want.Source != source {
		return false
	}
	return sp.hash("") == want.hash("")
}

// runs reports whether the resource is a workload.
func (sp *spec) runs() bool { return sp.Type == mesh.KindProcess || sp.Type == mesh.KindContainer }

// name is the instance as one file name and cgroup name: "MODULE.ID", or "MODULE.ID.b" in the other slot. Names have no
// dots, so it is unique.
func (sp *spec) name() string {
	if sp.slot == "" {
		return sp.Module + "." + sp.ID
	}
	return sp.Module + "." + sp.ID + "." + sp.slot
}

// resourceName is the name of an instance without its slot: what both instances of a resource share goes by it.
func resourceName(instance string) string {
	if module, id, _, ok := cutName(instance); ok {
		return module + "." + id
	}
	return instance
}

func nameOf(key string) string { return strings.Replace(key, "/", ".", 1) }

func (sp *spec) controller() bool { return slices.Contains(sp.Seats, mesh.SeatController) }

// account is the account's key in the accounts file: "MODULE", or "MODULE/NAME" for one that is named.
// It is scoped by module, so that no module can take another's.
func (sp *spec) account() string {
	if sp.Account == "" || sp.Account == sp.Module {
		return sp.Module
	}
	return sp.Module + "/" + sp.Account
}

func (sp *spec) private() bool {
	return sp.Type == mesh.KindContainer && sp.Network != "host"
}

func (sp *spec) startTimeout() time.Duration {
	if sp.Health == nil {
		return settleTime
	}
	return sp.Health.Start.Or(60 * time.Second)
}

// logSize is how much of its log is kept, in bytes.
func (sp *spec) logSize() int64 {
	if sp.Limits.Log > 0 {
		return sp.Limits.Log
	}
	return mesh.DefaultLog
}

// readyTimeout is how long a new one has in a handover to say that it is ready.
func (sp *spec) readyTimeout() time.Duration {
	if sp.Ready == nil {
		return sp.startTimeout()
	}
	return max(sp.startTimeout(), sp.Ready.Start.Or(60*time.Second))
}

func (sp *spec) grace() time.Duration { return sp.Stop.Grace.Or(10 * time.Second) }

func (sp *spec) stopSignal() int {
	if n, ok := mesh.SignalNumber(sp.Stop.Signal); ok {
		return n
	}
	return 15
}

// cutName is the way back from the name of an instance to module, ID and slot.
func cutName(name string) (module, id, slot string, ok bool) {
	parts := strings.Split(name, ".")
	switch {
	case len(parts) == 3 && parts[2] == otherSlot:
		slot = otherSlot
	case len(parts) != 2:
		return "", "", "", false
	}
	module, id = parts[0], parts[1]
	return module, id, slot, mesh.CheckName(module) == nil && mesh.CheckName(id) == nil
}

func formatUint(n uint64) string { return strconv.FormatUint(n, 10) }
