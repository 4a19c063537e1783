package blockdev

// Survey is what is known of a disk before anything is opened for writing: what it is, who uses it, what is on it.
type Survey struct {
	Disk
	Uses     []Use    `json:"uses,omitempty"`
	Contents Contents `json:"contents"`
}
