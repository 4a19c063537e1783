package builder

// Room says how full a place is that a release has on a disk.
type Room struct {
	Place string `json:"place"` // "slot", "esp"
	Size  int64  `json:"size"`  // bytes
	Used  int64  `json:"used"`  // bytes
}
