package mesh

// Membership is a node's place in a mesh. The zero value is a node in none.
type Membership struct {
	Mesh string `json:"mesh"`
	Node string `json:"node"` // its name in the mesh
	// CA and Operator are the mesh CA's and the first operator's certificate, PEM. Operator is empty on a
	// node that joined.
	CA       string `json:"ca"`
	Operator string `json:"operator,omitempty"`
	// Joined is set on a node that joined; the control-node, which was raised, has it false.
	Joined bool `json:"joined,omitempty"`
	// ControlNode is where the control-node's API answers, HOST:PORT, on a node that joined.
	ControlNode string `json:"controlNode,omitempty"`
}

// SeedEntry is one artifact of the seed, bound to its digest.
type SeedEntry struct {
	Ref
	Tag    string `json:"tag"`            // "0.1.0-amd64"
	Arch   string `json:"arch,omitempty"` // "amd64"; empty for a module
	Digest string `json:"digest"`         // of its manifest, "sha256:..."
	Size   int64  `json:"size"`           // bytes of its manifest and blobs together; shared blobs count in each
}
