package hostapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"kingpost/internal/mesh"
)

// InstallRequest has a node install itself onto another of its disks.
type InstallRequest struct {
	// Install says which disk and how; nil: the section install of the node's node.yaml.
	Install *mesh.InstallConfig `json:"install,omitempty"`
	// DryRun has only the plan made.
	DryRun bool `json:"dryRun,omitempty"`
	// Target is the disk that a plan has shown; another one is a refusal. Empty: whichever is selected.
	Target string `json:"target,omitempty"`
}

// Values of InstallStatus.State.
const (
	InstallNone      = "none"      // nothing is asked for
	InstallWaiting   = "waiting"   // node.yaml asks for it, and the disks are being looked at
	InstallPlanned   = "planned"   // the answer to a dry run
	InstallRunning   = "running"   // it is being written
	InstallRefused   = "refused"   // no disk is taken; nothing was written
	InstallFailed    = "failed"    // begun and not whole: nothing on the disk can be started until it is done again
	InstallDone      = "done"      // whole and read back; the node does next what Then says
	InstallInstalled = "installed" // this medium has installed this machine before, and does not do it again by itself
)

// InstallStatus is how an installation stands.
type InstallStatus struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why it waits, was refused or failed; what to do now
	Target string `json:"target,omitempty"` // path of the disk
	Phase  string `json:"phase,omitempty"`  // "write", "read back" or "check"
	Done   int64  `json:"done,omitempty"`   // bytes of the phase
	Total  int64  `json:"total,omitempty"`
	Then   string `json:"then,omitempty"` // "reboot", "poweroff" or "wait"
	// Plan is what was or would be done; nil until the disks were looked at.
	Plan     *Disks    `json:"plan,omitempty"`
	DiskGUID string    `json:"diskGUID,omitempty"` // of the installed disk
	Firmware string    `json:"firmware,omitempty"` // what was done to the firmware's boot entries
	Warnings []string  `json:"warnings,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
}

// Over reports whether nothing more comes by itself.
func (s InstallStatus) Over() bool {
	switch s.State {
	case InstallWaiting, InstallRunning:
		return false
	}
	return true
}

// StartInstall has the node install itself, or says what it would do. It returns when the disks were looked at.
func (c *Client) StartInstall(ctx context.Context, r InstallRequest) (*InstallStatus, error) {
	var s InstallStatus
	return &s, c.get(ctx, http.MethodPost, "/v1/install", r, &s)
}

// Install is how the installation stands.
func (c *Client) Install(ctx context.Context) (*InstallStatus, error) {
	var s InstallStatus
	return &s, c.get(ctx, http.MethodGet, "/v1/install", nil, &s)
}

// FollowInstall calls each with the installation's status, now and at every change, until it is over, each returns an error
// (which is returned), or ctx is done; see FollowRaise.
func (c *Client) FollowInstall(ctx context.Context, each func(InstallStatus) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.do(ctx, http.MethodGet, "/v1/install?follow=1", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	for {
		var s InstallStatus
		if err := dec.Decode(&s); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("follow the installation: %w", err)
		}
		if err := each(s); err != nil {
			return err
		}
	}
}
