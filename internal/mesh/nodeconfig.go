package mesh

// NodeConfig is node.yaml on the ESP. The zero value is what a node without the file runs with.
type NodeConfig struct {
	Hostname string        `yaml:"hostname,omitempty" json:"hostname,omitempty"`
	Network  NetworkConfig `yaml:"network,omitempty" json:"network,omitzero"`
	// Claim is the operator's public key: "ed25519:" and the base64 of its PKIX form (RFC 8410).
	Claim   string         `yaml:"claim,omitempty" json:"claim,omitempty"`
	Install *InstallConfig `yaml:"install,omitempty" json:"install,omitempty"`
	Mesh    MeshConfig     `yaml:"mesh,omitempty" json:"mesh,omitzero"`
}

// InstallConfig selects the disk that a node installs itself onto.
type InstallConfig struct {
	Disk DiskSelector `yaml:"disk" json:"disk"`
}

// DiskSelector names a disk; every field that is set must match.
type DiskSelector struct {
	Serial string `yaml:"serial,omitempty" json:"serial,omitempty"`
	Size   string `yaml:"size,omitempty" json:"size,omitempty"`
	Model  string `yaml:"model,omitempty" json:"model,omitempty"`
	Bus    string `yaml:"bus,omitempty" json:"bus,omitempty"`
	WWN    string `yaml:"wwn,omitempty" json:"wwn,omitempty"`
}

// MeshConfig says which mesh a node raises or joins by itself. At most one field is set.
type MeshConfig struct {
	Raise string      `yaml:"raise,omitempty" json:"raise,omitempty"` // the name of the mesh to raise
	Join  *JoinConfig `yaml:"join,omitempty" json:"join,omitempty"`
}

// JoinConfig is how a node joins a mesh.
type JoinConfig struct {
	Token string `yaml:"token" json:"token"`
}

// MaxNodeConfig bounds node.yaml, in bytes.
const MaxNodeConfig = 64 << 10
