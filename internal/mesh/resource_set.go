package mesh

import (
	"sort"
	"strconv"
	"strings"
)

// resourceSet checks what resources are to each other: unique, ordered without a cycle, one holder of
// each seat, one publisher of each port, and mounts that name what is there.
type resourceSet struct {
	p       *problems
	byKey   map[string]*Resource
	path    map[string]string
	module  map[string]string
	order   []string
	seats   map[string]string
	ports   map[string]string
	tooMany bool
}

func newResourceSet(p *problems, n int) *resourceSet {
	s := &resourceSet{
		p: p, byKey: map[string]*Resource{}, path: map[string]string{}, module: map[string]string{},
		seats: map[string]string{}, ports: map[string]string{},
	}
	if n > MaxResources {
		p.add("resources", "there are %d, at most %d are allowed", n, MaxResources)
		s.tooMany = true
	}
	return s
}

func (s *resourceSet) add(path, module string, r *Resource) {
	if s.tooMany {
		return
	}
	r.validate(s.p, path, module)
	if CheckName(r.ID) != nil {
		return
	}
	key := module + "/" + r.ID
	if first, ok := s.path[key]; ok {
		s.p.add(path+".id", "%q is taken by %s", r.ID, first)
		return
	}
	s.byKey[key], s.path[key], s.module[key] = r, path, module
	s.order = append(s.order, key)
	for i, seat := range r.Seats {
		if other, ok := s.seats[seat]; ok && other != key {
			s.p.add(path+".seats["+strconv.Itoa(i)+"]", "the seat %q is held by %s already", seat, other)
		}
		s.seats[seat] = key
	}
	for i, port := range r.Ports {
		k := strconv.Itoa(port.Host) + "/" + port.protocol()
		if other, ok := s.ports[k]; ok {
			s.p.add(path+".ports["+strconv.Itoa(i)+"].host", "port %s is published by %s already", k, other)
		}
		s.ports[k] = key
	}
}

// finish checks what needs all resources to be known.
func (s *resourceSet) finish() {
	if s.tooMany {
		return
	}
	for _, key := range s.order {
		r, path, module := s.byKey[key], s.path[key], s.module[key]
		for i, m := range r.Volumes {
			s.mount(path+".volumes["+strconv.Itoa(i)+"].volume", module, m.Volume, KindVolume)
		}
		for i, m := range r.Files {
			s.mount(path+".files["+strconv.Itoa(i)+"].file", module, m.File, KindFile)
		}
		for i, a := range r.After {
			if dep := afterKey(module, a); s.byKey[dep] == nil && strings.HasPrefix(dep, module+"/") {
				s.p.add(path+".after["+strconv.Itoa(i)+"]", "there is no resource %q in module %q", a, module)
			}
		}
	}
	s.cycles()
}

func (s *resourceSet) mount(path, module, id string, kind Kind) {
	if id == "" {
		return // said already
	}
	switch r := s.byKey[module+"/"+id]; {
	case r == nil:
		s.p.add(path, "there is no %s %q in module %q", kind, id, module)
	case r.Type != kind:
		s.p.add(path, "%q is a %s, not a %s", id, r.Type, kind)
	}
}

// cycles reports each cycle in After once, with its way.
func (s *resourceSet) cycles() {
	const (
		open = 1
		done = 2
	)
	state := map[string]int{}
	var stack []string
	// The walk keeps its own stack: a chain as long as a declaration must not be as deep as one.
	type frame struct {
		key  string
		next int
	}
	for _, root := range s.order {
		if state[root] != 0 {
			continue
		}
		frames := []frame{{key: root}}
		state[root] = open
		stack = append(stack[:0], root)
		for len(frames) > 0 {
			f := &frames[len(frames)-1]
			after := s.byKey[f.key].After
			if f.next == len(after) {
				state[f.key] = done
				frames, stack = frames[:len(frames)-1], stack[:len(stack)-1]
				continue
			}
			dep := afterKey(s.module[f.key], after[f.next])
			f.next++
			switch {
			case s.byKey[dep] == nil:
			case state[dep] == open:
				way := stack
				for i, k := range stack {
					if k == dep {
						way = stack[i:]
					}
				}
				s.p.add(s.path[f.key]+".after", "a cycle: %s after %s", strings.Join(reversed(way), " before "), way[len(way)-1])
			case state[dep] == 0:
				state[dep] = open
				frames = append(frames, frame{key: dep})
				stack = append(stack, dep)
			}
		}
	}
}

func reversed(a []string) []string {
	out := make([]string, 0, len(a))
	for i := len(a) - 1; i >= 0; i-- {
		out = append(out, a[i])
	}
	return out
}

// afterKey is the key that an entry of After names, seen from module.
func afterKey(module, after string) string {
	if strings.Contains(after, "/") {
		return after
	}
	return module + "/" + after
}

// AfterKeys are the keys ("MODULE/ID") of what d must wait for, sorted. What is not declared on the same
// node holds nothing up.
func (d *Declared) AfterKeys() []string {
	keys := make([]string, 0, len(d.After))
	for _, a := range d.After {
		keys = append(keys, afterKey(d.Module, a))
	}
	sort.Strings(keys)
	return keys
}
