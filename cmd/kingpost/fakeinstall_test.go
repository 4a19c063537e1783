package main

import (
	"encoding/json"
	"net/http"

	"kingpost/installer/install"
	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// fakePlan is the plan of a node with a stick and a disk.
func fakePlan(cfg *mesh.InstallConfig) (hostapi.Disks, error) {
	disk := func(name, serial string, size int64) install.Found {
		return install.Found{Survey: blockdev.Survey{Disk: blockdev.Disk{Name: name, Path: "/dev/" + name, Size: size, SectorSize: 512, Serial: serial, Serials: []string{serial}}}}
	}
	return install.Make(install.Machine{Disks: []install.Found{disk("sda", "STICK", 8<<30), disk("sdb", "S3Z", 500<<30)}, Booted: "/dev/sda", Layout: install.Layout{Arch: "amd64"}}, cfg)
}

// postInstall plans, or begins an installation that followInstall ends.
func (n *fakeNode) postInstall(w http.ResponseWriter, r *http.Request) {
	var req hostapi.InstallRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		refuse(w, http.StatusBadRequest, mesh.CodeBadParams, "%v", err)
		return
	}
	plan, err := fakePlan(req.Install)
	if err != nil {
		refuse(w, http.StatusBadRequest, mesh.CodeBadParams, "%v", err)
		return
	}
	st := hostapi.InstallStatus{State: hostapi.InstallPlanned, Target: plan.Target, Plan: &plan}
	switch {
	case plan.Target == "":
		st.State, st.Reason = hostapi.InstallRefused, plan.Reason.Text
	case !req.DryRun && req.Target != plan.Target:
		refuse(w, http.StatusConflict, mesh.CodeConflict, "disks have changed places")
		return
	case !req.DryRun:
		st.State, st.Then = hostapi.InstallRunning, req.Install.Then
	}
	if st.State == hostapi.InstallRunning {
		n.mu.Lock()
		n.install = st
		n.mu.Unlock()
	}
	send(w, st)
}

func (n *fakeNode) getInstall(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.install.State == "" {
		n.install.State = hostapi.InstallNone
	}
	if r.URL.Query().Get("follow") == "" || n.install.State != hostapi.InstallRunning {
		send(w, n.install)
		return
	}
	for _, phase := range []string{install.PhaseWrite, install.PhaseReadBack, install.PhaseCheck} {
		n.install.Phase, n.install.Done, n.install.Total = phase, 1<<30, 1<<30
		send(w, n.install)
		w.(http.Flusher).Flush()
	}
	n.install.State, n.install.Reason, n.install.Firmware = hostapi.InstallDone, "remove the stick; the node restarts from the disk", "the firmware starts the disk next"
	send(w, n.install)
	n.install = hostapi.InstallStatus{}
}
