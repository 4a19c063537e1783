package console

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"sort"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// node is what the console shows of the host's GET /v1/node. It is a type of its own, so that PID 1 does not carry the
// host's API and its HTTP stack.
type node struct {
	Name    string           `json:"name"`
	Key     string           `json:"key"`
	Release mesh.ReleaseInfo `json:"release"`
	Boot    struct {
		Slot string `json:"slot"`
	} `json:"boot"`
	Mesh      string    `json:"mesh"`
	State     string    `json:"state"`
	Addresses []string  `json:"addresses"`
	Warnings  []string  `json:"warnings"`
	Time      time.Time `json:"time"`
	DataSize  int64     `json:"dataSize"`
	DataFree  int64     `json:"dataFree"`
	Clock     *struct {
		Synced bool   `json:"synced"`
		From   string `json:"from"`
		Server string `json:"server"`
		Reason string `json:"reason"`
	} `json:"clock"`
	Install *installation `json:"install"`
}

// installation is how an installation onto another disk stands.
type installation struct {
	State    string `json:"state"`
	Reason   string `json:"reason"`
	Target   string `json:"target"`
	Phase    string `json:"phase"`
	Done     int64  `json:"done"`
	Total    int64  `json:"total"`
	Firmware string `json:"firmware"`
}

// lines says how an installation stands. A serial line is told of each tenth only.
func (i *installation) lines() []string {
	switch {
	case i == nil:
		return nil
	case i.State == "running" && i.Total > 0:
		return []string{fmt.Sprintf("install running onto %s: %s %d%%", i.Target, i.Phase, i.Done*10/i.Total*10)}
	case i.State == "running":
		return []string{"install running onto " + i.Target}
	}
	text := "install " + i.State
	if i.Target != "" {
		text += " " + i.Target
	}
	if i.Reason != "" {
		text += ": " + i.Reason
	}
	out := []string{text}
	if i.Firmware != "" {
		out = append(out, "install "+i.Firmware)
	}
	return out
}

// raise is what the console shows of GET /v1/raise.
type raise struct {
	State string      `json:"state"`
	Step  int         `json:"step"`
	Steps []raiseStep `json:"steps"`
}

type raiseStep struct {
	Number int    `json:"number"`
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason"`
}

// maxListed bounds how many addresses and warnings are shown.
const maxListed = 8

// answers are what the host said last: to GET /v1/node, /v1/raise and /v1/status. Raise and status may be nil.
type answers struct{ node, raise, status []byte }

// view is what both kinds of console show of the host's answers.
func (a answers) view() (block []string, s *Screen, state string, err error) {
	var n node
	if err := json.Unmarshal(a.node, &n); err != nil {
		return nil, nil, "", fmt.Errorf("the host's answer to GET /v1/node: %w", err)
	}
	sort.Strings(n.Addresses)
	var r raise
	if a.raise != nil {
		if err := json.Unmarshal(a.raise, &r); err != nil {
			return nil, nil, "", fmt.Errorf("the host's answer to GET /v1/raise: %w", err)
		}
	}
	st := parseStatus(a.status)
	return append(lines(n, r), st.heldLines()...), screen(n, r, st), n.State, nil
}

// lines is the block of a serial console.
func lines(n node, r raise) []string {
	out := []string{
		fmt.Sprintf("node %s key %s", n.Name, n.Key),
		fmt.Sprintf("release %s %s%s", n.Release.Name, n.Release.Version, slot(n.Boot.Slot)),
	}
	for i, a := range n.Addresses {
		if i == maxListed {
			out = append(out, fmt.Sprintf("api %d more addresses", len(n.Addresses)-i))
			break
		}
		out = append(out, "api "+apiURL(a))
	}
	if n.Mesh != "" {
		out = append(out, "mesh "+n.Mesh)
	}
	out = append(out, "state "+n.State)
	out = append(out, raiseLines(r)...)
	out = append(out, n.Install.lines()...)
	for i, w := range n.Warnings {
		if i == maxListed {
			break
		}
		out = append(out, "warning "+w)
	}
	return out
}

func slot(s string) string {
	if s == "" {
		return ""
	}
	return " slot " + s
}

func raiseLines(r raise) []string {
	if r.State == "" || r.State == "none" || r.State == "done" {
		return nil
	}
	var out []string
	for _, s := range r.Steps {
		if s.Number != r.Step {
			continue
		}
		l := fmt.Sprintf("raise step %d/%d %s %s", s.Number, len(r.Steps), s.Name, s.State)
		if s.Reason != "" {
			l += ": " + s.Reason
		}
		out = append(out, l)
	}
	if r.State != "running" {
		out = append(out, "raise "+r.State)
	}
	return out
}

// apiURL is where an address ("10.0.2.15", "10.0.2.15/24", "fe80::1/64") answers.
func apiURL(a string) string {
	host, _, _ := strings.Cut(a, "/")
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + host + "]"
	}
	return fmt.Sprintf("https://%s:%d", host, mesh.PortAPI)
}
