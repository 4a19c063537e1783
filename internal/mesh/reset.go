package mesh

// Reset is the mark on the data partition (PathReset) that a node is to be wiped back to unclaimed. It is written first;
// PID 1 does what it says at the next boot, before anything else uses the partition, and removes it last, so that a power
// cut at any moment either leaves the node as it was or ends in one that is wiped.
type Reset struct {
	Node string `json:"node"` // its name, for people
	// NodeConfig is the SHA-256 of node.yaml in hex, as it was when the reset was asked for. As long as the file stays
	// that one, its claim, install and mesh do not count. Empty: there was none.
	NodeConfig string `json:"nodeConfig,omitempty"`
	// KeepClaim lets the claim in it count all the same.
	KeepClaim bool `json:"keepClaim,omitempty"`
}

const (
	// PathReset is the mark of a reset that is not done yet.
	PathReset = PathState + "/reset.json"
	// PathNode is the folder of who the node is.
	PathNode = PathState + "/node"
	// FileVoid, below PathNode, is what stays of a reset: the Reset that says which node.yaml does not count any more.
	FileVoid = "void.json"
)
