package mesh

// Manifest is a module's module.json: the unit that is delivered, and what it names. In it resources
// carry names; digests are bound when it is declared.
type Manifest struct {
	// Module is the module's name: [a-z0-9][a-z0-9-]{0,62}.
	Module string `json:"module"`
	// Version is for people; what runs is decided by digest.
	Version     string     `json:"version,omitempty"`
	Description string     `json:"description,omitempty"`
	Resources   []Resource `json:"resources"`
}

// MaxManifest bounds a module.json, in bytes.
const MaxManifest = 4 << 20
