package network

import (
	"fmt"
	"slices"
	"strings"
)

// linkInfo is what is known of a link of the machine.
type linkInfo struct {
	index   int
	name    string
	mac     string // the card's own, also while a bond has given it another
	driver  string
	device  bool // a device is behind it: it is no container's
	carrier bool
	master  int // index of the bond or bridge that it is in
	parent  int // index of the link that it is a VLAN on
}

// role is what is to be done with a link.
type role struct {
	entry *entry // nil: what network.dhcp says
	dhcp  bool
	bond  string // it is in this bond, and has nothing of its own
}

func (s selector) matches(l *linkInfo) bool {
	return (s.name == "" || s.name == l.name) && (s.mac == "" || s.mac == l.mac) && (s.driver == "" || s.driver == l.driver)
}

// find returns the links that a selector selects: devices, and what the settings make.
func (s *settings) find(sel selector, links map[int]*linkInfo) []*linkInfo {
	var out []*linkInfo
	for _, l := range sorted(links) {
		if sel.matches(l) && (l.device || s.makes(l.name)) {
			out = append(out, l)
		}
	}
	return out
}

// makes says whether the settings make a link of this name.
func (s *settings) makes(name string) bool {
	return slices.ContainsFunc(s.entries, func(e entry) bool { return e.made() && e.name == name })
}

// roles decides what each link is for. It is pure, so that the order in which links appear decides nothing: an entry with
// addresses that selects two links is used for neither, since a guess would put a node's address on the wrong network.
func (s *settings) roles(links map[int]*linkInfo) (map[int]role, []string) {
	out := map[int]role{}
	var warnings []string
	for i := range s.entries {
		e := &s.entries[i]
		if e.bond == nil {
			continue
		}
		for _, sel := range e.bond.links {
			for _, l := range s.find(sel, links) {
				if other, ok := out[l.index]; ok && other.bond != e.name {
					warnings = append(warnings, fmt.Sprintf("%s: %s is in the bond %s already", e.place, l.name, other.bond))
					continue
				}
				if l.device {
					out[l.index] = role{bond: e.name}
				}
			}
		}
	}
	for i := range s.entries {
		e := &s.entries[i]
		var found []*linkInfo
		for _, l := range sorted(links) {
			switch {
			case e.made() && l.name == e.name && !l.device, !e.made() && l.device && e.match.matches(l):
				if _, taken := out[l.index]; !taken {
					found = append(found, l)
				}
			}
		}
		if len(found) > 1 && len(e.addrs) > 0 {
			var names []string
			for _, l := range found {
				names = append(names, l.name)
				out[l.index] = role{entry: &entry{slaac: e.slaac}} // up, but with nothing of the entry's
			}
			warnings = append(warnings, fmt.Sprintf("%s: %s selects %s, so its addresses are given to none; say which by its mac", e.place, e.match, strings.Join(names, " and ")))
			continue
		}
		for _, l := range found {
			out[l.index] = role{entry: e, dhcp: e.dhcp}
		}
		if len(found) == 0 && !e.made() {
			warnings = append(warnings, fmt.Sprintf("%s: this machine has no link with %s; it has %s", e.place, e.match, describe(links)))
		}
	}
	for _, l := range links {
		if _, ok := out[l.index]; !ok && l.device {
			out[l.index] = role{dhcp: s.dhcp}
		}
	}
	return out, warnings
}

// describe lists the links that could have been selected.
func describe(links map[int]*linkInfo) string {
	var out []string
	for _, l := range sorted(links) {
		if l.device {
			out = append(out, fmt.Sprintf("%s (mac %s, driver %s)", l.name, l.mac, l.driver))
		}
	}
	if out == nil {
		return "none at all"
	}
	return strings.Join(out, ", ")
}

func sorted(links map[int]*linkInfo) []*linkInfo {
	out := make([]*linkInfo, 0, len(links))
	for _, l := range links {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *linkInfo) int { return a.index - b.index })
	return out
}
