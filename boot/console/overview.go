package console

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"
)

// status is what the console shows of GET /v1/status.
type status struct {
	Settled   bool       `json:"settled"`
	Resources []resource `json:"resources"`
}

type resource struct {
	Key    string `json:"key"`
	Module string `json:"module"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// trouble says whether a resource is in a state that somebody must look at.
func (r resource) trouble() bool {
	return r.State == "held" || r.State == "failed" || r.State == "backoff"
}

// up says whether a resource is as it should be.
func (r resource) up() bool {
	switch r.State {
	case "running", "healthy", "present", "done":
		return true
	}
	return false
}

// parseStatus reads GET /v1/status; nil and what cannot be read are none.
func parseStatus(b []byte) status {
	var s status
	if b == nil || json.Unmarshal(b, &s) != nil {
		return status{}
	}
	return s
}

// heldLines are the lines of a serial console for resources that are held.
func (s status) heldLines() []string {
	var out []string
	for _, r := range s.Resources {
		if r.State == "held" || r.State == "failed" {
			out = append(out, fmt.Sprintf("%s %s: %s", r.State, r.Key, r.Reason))
		}
	}
	sort.Strings(out)
	if len(out) > maxListed {
		out = append(out[:maxListed], fmt.Sprintf("held %d more", len(out)-maxListed))
	}
	return out
}

// screen puts what the host says onto a virtual terminal.
func screen(n node, r raise, s status) *Screen {
	name := n.Name
	if n.Mesh != "" {
		name += "." + n.Mesh
	}
	out := &Screen{
		Title: "KINGPOST  " + name,
		Right: strings.TrimSpace(fmt.Sprintf("%s %s%s", n.Release.Name, n.Release.Version, slot(n.Boot.Slot))),
		Time:  n.Time,
	}
	colour := map[string]string{"raised": green, "joined": green, "raising": yellow, "claimed": yellow, "unclaimed": yellow}[n.State]
	state := n.State
	if l := raiseLines(r); len(l) > 0 {
		state += ": " + strings.TrimPrefix(l[0], "raise ")
	}
	out.Rows = append(out.Rows, Row{"state", []string{state}, colour})
	if n.Mesh != "" {
		out.Rows = append(out.Rows, Row{Name: "mesh", Values: []string{n.Mesh}})
	}
	if l := n.Install.lines(); len(l) > 0 {
		c := map[string]string{"done": green, "running": yellow, "waiting": yellow}[n.Install.State]
		if c == "" {
			c = red
		}
		out.Rows = append(out.Rows, Row{"install", []string{strings.TrimPrefix(l[0], "install ")}, c})
	}
	var reach []string
	for i, a := range n.Addresses {
		if i == 4 {
			reach = append(reach, fmt.Sprintf("and %d more", len(n.Addresses)-i))
			break
		}
		reach = append(reach, apiURL(a))
	}
	reachColour := bright
	if reach == nil {
		reach, reachColour = []string{"no network: no cable, no DHCP server, or no driver"}, yellow
	}
	out.Rows = append(out.Rows, Row{"address", reach, reachColour}, Row{"node key", []string{n.Key}, bright})
	if len(s.Resources) > 0 {
		modules, down := map[string]bool{}, map[string]bool{}
		for _, q := range s.Resources {
			modules[q.Module] = true
			if !q.up() {
				down[q.Module] = true
			}
		}
		row := Row{"modules", []string{fmt.Sprintf("%d, all up", len(modules))}, green}
		if len(down) > 0 {
			row = Row{"modules", []string{fmt.Sprintf("%d, %d not up", len(modules), len(down))}, yellow}
		}
		out.Rows = append(out.Rows, row)
	}
	if c := n.Clock; c != nil {
		text := "not synced: " + c.Reason
		if c.Synced {
			text = "synced with " + c.Server + " (" + c.From + ")"
		}
		out.Rows = append(out.Rows, Row{Name: "clock", Values: []string{text}})
	}
	if n.DataSize > 0 {
		row := Row{Name: "data", Values: []string{fmt.Sprintf("%.1f of %.1f GiB free", gib(n.DataFree), gib(n.DataSize))}}
		if n.DataFree < n.DataSize/20 {
			row.Colour = red
		}
		out.Rows = append(out.Rows, row)
	}
	for _, q := range s.Resources {
		if q.trouble() {
			out.Alerts = append(out.Alerts, Alert{q.State != "backoff", fmt.Sprintf("%s %s: %s", q.Key, map[string]string{"held": "is held", "failed": "has failed", "backoff": "waits to be started again"}[q.State], q.Reason)})
		}
	}
	sort.SliceStable(out.Alerts, func(i, j int) bool { return out.Alerts[i].Grave && !out.Alerts[j].Grave })
	for _, w := range n.Warnings {
		out.Alerts = append(out.Alerts, Alert{false, w})
	}
	out.Hints = hints(n)
	return out.clean()
}

func gib(n int64) float64 { return float64(n) / (1 << 30) }

// hints say what somebody who stands before the machine can do next.
func hints(n node) []string {
	at := "ADDRESS"
	if len(n.Addresses) > 0 {
		at, _, _ = strings.Cut(n.Addresses[0], "/")
	}
	switch n.State {
	case "unclaimed":
		return []string{
			"This node is nobody's. To claim it, put the line that `kingpost claim new`",
			"prints into node.yaml on the partition KINGPOST of its disk, and restart it.",
		}
	case "claimed":
		return []string{
			"Make a mesh of it from the operator's machine; compare the node key above:",
			"kingpost raise " + at + " --mesh NAME",
		}
	}
	return nil
}

// clean keeps what comes from elsewhere from moving the cursor.
func (s *Screen) clean() *Screen {
	s.Title, s.Right = clean(s.Title), clean(s.Right)
	for i := range s.Rows {
		for j := range s.Rows[i].Values {
			s.Rows[i].Values[j] = clean(s.Rows[i].Values[j])
		}
	}
	for i := range s.Alerts {
		s.Alerts[i].Text = clean(s.Alerts[i].Text)
	}
	for i := range s.Hints {
		s.Hints[i] = clean(s.Hints[i])
	}
	return s
}
