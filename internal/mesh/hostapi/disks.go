package hostapi

import (
	"context"
	"net/http"

	"kingpost/internal/blockdev"
	"kingpost/internal/mesh"
)

// Disks is what disks a machine has, and what an installation by its node.yaml would do with them.
type Disks struct {
	// Install is that section of node.yaml as it counts; nil: it has none, and then no disk is taken.
	Install *mesh.InstallConfig `json:"install,omitempty"`
	// Target is the path of the disk that would be taken; empty: none, and Reason says why.
	Target string      `json:"target,omitempty"`
	Reason *DiskReason `json:"reason,omitempty"`
	Disks  []NodeDisk  `json:"disks"`
	// Partitions are what Target would have.
	Partitions []PlannedPartition `json:"partitions,omitempty"`
	Warnings   []DiskReason       `json:"warnings,omitempty"`
}

// DiskReason is one reason, for programs and for people.
type DiskReason struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// NodeDisk is one disk, what is on it, and whether it would be taken.
type NodeDisk struct {
	blockdev.Survey
	// Kingpost is set where an installation of Kingpost is on it.
	Kingpost *InstalledDisk `json:"kingpost,omitempty"`
	// Booted is set for the medium that the node booted from.
	Booted bool `json:"booted,omitempty"`
	// Possible says that nothing but the selection stands against it.
	Possible bool `json:"possible"`
	Taken    bool `json:"taken"`
	// Reasons say why it would not be taken; empty for the one that would.
	Reasons []DiskReason `json:"reasons"`
}

// InstalledDisk is an installation of Kingpost on a disk.
type InstalledDisk struct {
	DiskGUID string `json:"diskGUID"`
	// Starts is what the disk would start: "0.1.0", "rescue". Empty: nothing, and Trouble says why.
	Starts  string `json:"starts,omitempty"`
	Trouble string `json:"trouble,omitempty"`
	// Medium is the GUID of the disk that it was installed from, Root and Config what that one had: the root hash of its
	// release and the SHA-256 of its node.yaml. Empty: it was flashed.
	Medium string `json:"medium,omitempty"`
	Root   string `json:"root,omitempty"`
	Config string `json:"config,omitempty"`
}

// PlannedPartition is a partition that an installation would write, or keep.
type PlannedPartition struct {
	Number   int    `json:"number"`
	Name     string `json:"name"`
	FirstLBA int64  `json:"firstLBA"` // sectors of the disk's own size
	LastLBA  int64  `json:"lastLBA"`
	Size     int64  `json:"size"` // bytes
	Kept     bool   `json:"kept,omitempty"`
}

// Disks lists the node's disks, and what an installation by its node.yaml would do with them.
func (c *Client) Disks(ctx context.Context) (*Disks, error) {
	var d Disks
	return &d, c.get(ctx, http.MethodGet, "/v1/disks", nil, &d)
}
