package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// moduleRecord is where a module stands.
type moduleRecord struct {
	Name      string   `json:"name"`
	Current   uint64   `json:"current"`   // number of the version that may be declared; 0: none
	Latest    uint64   `json:"latest"`    // number of the newest version; held back while it is not Current
	Placement []string `json:"placement"` // names of nodes, sorted
}

func (r *moduleRecord) on(node string) bool { return slices.Contains(r.Placement, node) }

// moduleVersion is one version in a module's history.
type moduleVersion struct {
	Number   uint64        `json:"number"`
	At       time.Time     `json:"at"`
	By       string        `json:"by"`
	SHA256   string        `json:"sha256"`
	Digests  mesh.Digests  `json:"digests"`
	Manifest mesh.Manifest `json:"manifest"`
}

// nodeRecord is a node of the mesh.
type nodeRecord struct {
	Name    string `json:"name"`
	Arch    string `json:"arch"` // Go's name
	Control bool   `json:"control"`
}

// module is a moduleRecord with the versions that it points to; nil where there is none.
type module struct {
	moduleRecord
	current, latest *moduleVersion
}

// world is the wanted state of the mesh as one value. Everything that is derived from it is pure, so
// that a plan and what is done later cannot differ.
type world struct {
	mesh    string
	control string
	nodes   map[string]nodeRecord
	modules []module // sorted by name
}

// promote makes the latest version of a module its current one.
func (m *module) promote() {
	m.Current, m.current = m.Latest, m.latest
}

// set adds m or replaces the module of the same name.
func (w *world) set(m module) {
	i, found := slices.BinarySearchFunc(w.modules, m.Name, func(a module, name string) int { return strings.Compare(a.Name, name) })
	if found {
		w.modules[i] = m
	} else {
		w.modules = slices.Insert(w.modules, i, m)
	}
}

func (w *world) find(name string) (module, bool) {
	i, found := slices.BinarySearchFunc(w.modules, name, func(a module, name string) int { return strings.Compare(a.Name, name) })
	if !found {
		return module{}, false
	}
	return w.modules[i], true
}

// resources computes what node must run: the current versions of the modules that are placed on it, by
// digest, sorted by module and ID.
func (w *world) resources(node string) ([]mesh.Declared, error) {
	n, ok := w.nodes[node]
	if !ok {
		return nil, fmt.Errorf("there is no node %q", node)
	}
	out := []mesh.Declared{}
	for _, m := range w.modules {
		if m.current == nil || !m.on(node) {
			continue
		}
		for _, r := range m.current.Manifest.Resources {
			if ref := r.Artifact(); !ref.IsZero() {
				r.Digest = m.current.Digests[ref.String()][n.Arch]
				if r.Digest == "" {
					return nil, fmt.Errorf("module %s: nothing says which digest %s has for %s, the architecture of %s; push it with digests", m.Name, ref, n.Arch, node)
				}
				r.Source = source(m.Name)
			}
			out = append(out, mesh.Declared{Module: m.Name, Resource: r})
		}
	}
	slices.SortFunc(out, func(a, b mesh.Declared) int {
		if c := strings.Compare(a.Module, b.Module); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return out, nil
}

// registryModule is the module whose container is the store. It is never fetched through itself.
const registryModule = "registry"

// brokerModule is the other one that runs before there is a store to fetch from.
const brokerModule = "broker"

// source says from where a module's bytes must come. Everything comes from the store, so that what runs is what the
// mesh can hand out again; the store alone comes from the seed. The broker may have come from there too: by digest it
// is the same, and to start it again only for its bytes' way would cut off whoever is connected.
func source(module string) mesh.Source {
	switch module {
	case registryModule:
		return mesh.SourceSeed
	case brokerModule:
		return mesh.SourceAny
	}
	return mesh.SourceStore
}

// holder is who would hold a seat.
type holder struct {
	seat, node, key string
}

// holders lists who holds which seat, by pick's version of each module, sorted by seat.
func (w *world) holders(pick func(module) *moduleVersion) []holder {
	var hs []holder
	for _, m := range w.modules {
		v := pick(m)
		if v == nil {
			continue
		}
		for _, node := range m.Placement {
			for _, r := range v.Manifest.Resources {
				for _, s := range r.Seats {
					hs = append(hs, holder{seat: s, node: node, key: m.Name + "/" + r.ID})
				}
			}
		}
	}
	slices.SortStableFunc(hs, func(a, b holder) int { return strings.Compare(a.seat, b.seat) })
	return hs
}

func current(m module) *moduleVersion { return m.current }
func latest(m module) *moduleVersion  { return m.latest }

// checkSeats refuses two holders of one seat, now or once what is held back is declared.
func (w *world) checkSeats() error {
	for _, pick := range []func(module) *moduleVersion{current, latest} {
		hs := w.holders(pick)
		for i := 1; i < len(hs); i++ {
			a, b := hs[i-1], hs[i]
			if a.seat == b.seat {
				return fmt.Errorf("the seat %s would have two holders, %s on %s and %s on %s; a seat has one: take it from one of the manifests, or take that module off its nodes first",
					a.seat, a.key, a.node, b.key, b.node)
			}
		}
	}
	return nil
}

// checkController refuses a mesh that would lose its controller: nothing could change it again.
func (w *world) checkController() error {
	for _, h := range w.holders(current) {
		if h.seat == mesh.SeatController {
			if h.node == w.control {
				return nil
			}
			return fmt.Errorf("%s, which holds the controller seat, would run on %s; it belongs on the control-node %s", h.key, h.node, w.control)
		}
	}
	return fmt.Errorf("no module on %s would hold the controller seat, and nothing could change the mesh again; push the controller's module first", w.control)
}
