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
	// Wipe gives up what an earlier installation has on its data partition, which is kept otherwise.
	Wipe bool `yaml:"wipe,omitempty" json:"wipe,omitempty"`
	// Booted lets the medium that the node booted from be the target.
	Booted bool `yaml:"booted,omitempty" json:"booted,omitempty"`
	// Then is what the node does when it is installed: ThenReboot (also ""), ThenPowerOff or ThenWait.
	Then string `yaml:"then,omitempty" json:"then,omitempty"`
}

// Values of InstallConfig.Then.
const (
	ThenReboot   = "reboot"
	ThenPowerOff = "poweroff"
	ThenWait     = "wait" // until somebody switches it off
)

// DiskSelector names a disk; every field that is set must match.
type DiskSelector struct {
	Serial string `yaml:"serial,omitempty" json:"serial,omitempty"`
	WWN    string `yaml:"wwn,omitempty" json:"wwn,omitempty"`
	// Path is the kernel's: "/dev/sda". It can be another disk's at the next boot.
	Path string `yaml:"path,omitempty" json:"path,omitempty"`
	// Size is one size, or borders: ">= 400GB, < 1TB"; see release.ParseDiskSize.
	Size  string `yaml:"size,omitempty" json:"size,omitempty"`
	Model string `yaml:"model,omitempty" json:"model,omitempty"` // part of it, in any case
	Bus   string `yaml:"bus,omitempty" json:"bus,omitempty"`     // of blockdev.Buses
	// Rotational is true for disks that turn, false for those that do not; nil for both.
	Rotational *bool `yaml:"rotational,omitempty" json:"rotational,omitempty"`
	// Only takes the only disk that there is beside the one that the node booted from, if nothing on it would be lost.
	Only bool `yaml:"only,omitempty" json:"only,omitempty"`
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
