package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/verbs"
)

// diff says what changes on node when before becomes after. Both are sorted by module and ID, and so is
// the result.
func (w *world) diff(node string, before, after []mesh.Declared) []verbs.Change {
	var out []verbs.Change
	old := map[string]*mesh.Declared{}
	for i := range before {
		old[before[i].Key()] = &before[i]
	}
	kept := map[string]bool{}
	for i := range after {
		a := &after[i]
		b := old[a.Key()]
		kept[a.Key()] = true
		switch {
		case b == nil:
			out = append(out, verbs.Change{Node: node, Key: a.Key(), Action: "add", Why: w.whyAdded(a, before), To: a.Digest})
		default:
			if c, changed := compare(b, a); changed {
				c.Node = node
				out = append(out, c)
			}
		}
	}
	for i := range before {
		if b := &before[i]; !kept[b.Key()] {
			out = append(out, verbs.Change{Node: node, Key: b.Key(), Action: "remove", Why: w.whyRemoved(node, b), From: b.Digest})
		}
	}
	slices.SortFunc(out, func(a, b verbs.Change) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (w *world) whyAdded(a *mesh.Declared, before []mesh.Declared) string {
	for i := range before {
		if before[i].Module == a.Module {
			return fmt.Sprintf("module %s now declares this %s", a.Module, a.Type)
		}
	}
	return fmt.Sprintf("module %s is placed here and declares this %s", a.Module, a.Type)
}

func (w *world) whyRemoved(node string, b *mesh.Declared) string {
	m, ok := w.find(b.Module)
	if !ok {
		return fmt.Sprintf("module %s is removed", b.Module)
	}
	if !m.on(node) {
		return fmt.Sprintf("module %s is no longer placed here", b.Module)
	}
	return fmt.Sprintf("module %s no longer declares it", b.Module)
}

// compare names every field of a resource that differs.
func compare(b, a *mesh.Declared) (verbs.Change, bool) {
	c := verbs.Change{Key: a.Key(), Action: "change", From: b.Digest, To: a.Digest}
	var why []string
	if b.Type != a.Type {
		c.Action = "handover"
		why = append(why, fmt.Sprintf("the %s becomes a %s", b.Type, a.Type))
	}
	if b.Digest != a.Digest && b.Type == a.Type {
		c.Action = "handover"
		why = append(why, fmt.Sprintf("another version of %s", a.Artifact()))
	}
	// The other fields by their JSON names: those are the words of module.json.
	fb, fa := fields(b), fields(a)
	var names []string
	for k := range fa {
		if string(fb[k]) != string(fa[k]) {
			names = append(names, k)
		}
	}
	for k := range fb {
		if _, ok := fa[k]; !ok {
			names = append(names, k)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(n string) bool {
		return n == "digest" || n == "type" || b.Type != a.Type && (n == "name" || n == "image" || n == "bundle" || n == "network")
	})
	if len(names) > 0 {
		why = append(why, "changed: "+strings.Join(names, ", "))
	}
	if len(why) == 0 {
		return verbs.Change{}, false
	}
	c.Why = strings.Join(why, "; ")
	return c, true
}

// fields is a resource as its JSON fields. Marshalling a resource cannot fail, and sorts map keys.
func fields(d *mesh.Declared) map[string]json.RawMessage {
	data, err := json.Marshal(d)
	if err != nil {
		return nil
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(data, &m) != nil {
		return nil
	}
	return m
}
