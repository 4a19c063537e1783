package host

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"kingpost/internal/host/node"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
)

type httpHandler = http.Handler

// Name is the node's name: the one it has in its mesh, else what node.yaml says, else one made of its id.
func (h *Host) Name() string {
	if _, name := h.id.Mesh(); name != "" {
		return name
	}
	if h.settings.Hostname != "" {
		return h.settings.Hostname
	}
	return node.DefaultName(h.self.ID)
}

// Node is who the node is and how it stands.
func (h *Host) Node() hostapi.Node {
	m, _ := h.id.Mesh()
	now := h.cfg.Now()
	n := hostapi.Node{
		Name: h.Name(), ID: h.self.ID, Key: h.self.Fingerprint, Release: h.boot.Release, Boot: h.boot,
		Claimed: h.settings.Key != nil, Mesh: m, State: h.state(), Addresses: h.net.Addresses(),
		Time: now, Clock: h.timeStatus(), Uptime: uptime(),
		Host:     hostapi.HostInfo{Digest: h.cfg.Digest, PID: os.Getpid(), Since: h.started, Memory: resident("self"), Init: resident("1")},
		Warnings: slices.Clone(h.settings.Warnings), Install: h.installStatus(),
	}
	if l, ok := h.launcher(); ok {
		n.Host.Launcher = &l
	}
	if h.settings.Key != nil {
		n.Claim = tlsid.Fingerprint(h.settings.Key)
	}
	if m != "" && h.settings.Hostname != "" && h.settings.Hostname != n.Name {
		n.Warnings = append(n.Warnings, "node.yaml: hostname was edited after this node came into its mesh, where it stays "+n.Name)
	}
	if n.Boot.Clock != "" {
		n.Warnings = append(n.Warnings, "clock: "+n.Boot.Clock)
	}
	n.Warnings = append(n.Warnings, h.net.Warnings()...)
	n.Warnings = append(n.Warnings, n.Boot.Warnings...)
	n.Warnings = append(n.Warnings, h.super.Warnings()...)
	if n.Addresses == nil {
		n.Addresses = []string{}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(h.cfg.Paths.Data, &st); err == nil {
		n.DataSize, n.DataFree = int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize
		n.Warnings = append(n.Warnings, diskWarnings(&st)...)
	}
	return n
}

// resident is the resident memory of a process (proc_pid_statm(5)), in bytes; 0 when it cannot be read.
func resident(pid string) int64 {
	b, err := os.ReadFile("/proc/" + pid + "/statm")
	if err != nil {
		return 0
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

// fullBelow is the share of the data partition, one in so many, below which it counts as full.
const fullBelow = 50

// diskWarnings are what is wrong with the data partition. What the node has runs on; it can take nothing new.
func diskWarnings(st *unix.Statfs_t) []string {
	var out []string
	if st.Flags&unix.ST_RDONLY != 0 {
		out = append(out, "the data partition takes no writes: its file system has an error or its disk fails; what runs goes on, nothing new is kept; restart the node, or replace the disk")
	}
	if st.Bavail < st.Blocks/fullBelow {
		out = append(out, fmt.Sprintf("the data partition is full, %d MiB of %d MiB are free: remove modules or what their volumes hold; what runs goes on, and what waits for room goes on when there is some",
			int64(st.Bavail)*st.Bsize>>20, int64(st.Blocks)*st.Bsize>>20))
	}
	return out
}

func (h *Host) state() string {
	member, err := h.id.Membership()
	if err == nil && member.Joined {
		return "joined"
	}
	state := "none"
	if r := h.raises(); r != nil {
		state = r.Status().State
	}
	switch {
	case state == "done":
		return "raised"
	case state == "running", state == "failed", member.Mesh != "":
		return "raising"
	case h.settings.Key != nil:
		return "claimed"
	}
	return "unclaimed"
}

// summary is the launcher's line about this node.
func (h *Host) summary() string { return h.Name() + " " + h.state() + " key " + h.self.Fingerprint }

// readBoot reads what PID 1 found out; without it (a host that is tried out) the release alone, if any.
func readBoot(p Paths) mesh.BootInfo {
	var b mesh.BootInfo
	if raw, err := os.ReadFile(p.Boot); err == nil {
		if err := json.Unmarshal(raw, &b); err != nil {
			b = mesh.BootInfo{Warnings: []string{"what was found at boot cannot be read: " + err.Error()}}
		}
	}
	if b.Release == (mesh.ReleaseInfo{}) {
		if raw, err := os.ReadFile(p.Release); err == nil && json.Unmarshal(raw, &b.Release) != nil {
			b.Warnings = append(b.Warnings, "the release cannot be read from "+p.Release)
		}
	}
	if b.Release.Architecture == "" {
		b.Release.Architecture = runtime.GOARCH
	}
	return b
}

// uptime of the machine, in seconds.
func uptime() float64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return float64(ts.Nano()) / 1e9
}
