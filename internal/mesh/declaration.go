package mesh

// Version orders declarations: first by Epoch, the term of the writer, then by Revision, which grows
// within it. A host keeps the highest pair on disk and refuses a lower one.
type Version struct {
	Epoch    uint64 `json:"epoch"`
	Revision uint64 `json:"revision"`
}

// Less reports whether v is older than o.
func (v Version) Less(o Version) bool {
	if v.Epoch != o.Epoch {
		return v.Epoch < o.Epoch
	}
	return v.Revision < o.Revision
}

// Declared is a resource placed on a node: a manifest's resource with its module and its digest.
type Declared struct {
	Module string `json:"module"`
	Resource
}

// Key names a declared resource on its node: "MODULE/ID".
func (d *Declared) Key() string { return d.Module + "/" + d.ID }

// Declaration is what one node must run: the resources of all modules placed on it, by digest only.
// The controller writes it, the host applies it. Before there is a controller the raise writes it, at epoch 0.
type Declaration struct {
	Mesh string `json:"mesh"`
	Node string `json:"node"`
	Version
	// Writer is who wrote it, for people: "raise", "operator", "controller".
	Writer    string     `json:"writer,omitempty"`
	Resources []Declared `json:"resources"`
}
