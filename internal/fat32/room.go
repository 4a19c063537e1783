package fat32

import (
	"fmt"
	"math"
	"path"
	"unicode/utf16"
)

// Usage is how full a file system is, in bytes of whole clusters.
type Usage struct {
	Used, Size int64
	// Cluster is the size of a cluster: what each file is rounded up to.
	Cluster int64
}

// Room works out how full a new file system of size bytes would be with files in it, to the cluster. That they do not fit
// is no error; that they cannot be in any FAT32 file system of that size is one.
func Room(size int64, sectorSize int, files []File) (Usage, error) {
	g, err := plan(size, sectorSize)
	if err != nil {
		return Usage{}, err
	}
	slots := map[string]int{".": 1} // the root's label
	used := int64(0)
	for _, f := range files {
		if int64(len(f.Data)) > math.MaxUint32 {
			return Usage{}, fmt.Errorf("%s has %d bytes, a file in FAT32 has at most %d", f.Path, len(f.Data), int64(math.MaxUint32))
		}
		used += (int64(len(f.Data)) + g.clusterSize - 1) / g.clusterSize
		name := path.Clean(f.Path)
		for {
			dir := path.Dir(name)
			_, known := slots[dir]
			if slots[dir] += entrySlots(path.Base(name)); known {
				break
			}
			slots[dir] += 2 // "." and ".."
			name = dir
		}
	}
	for _, n := range slots {
		used += (int64(n)*entrySize + g.clusterSize - 1) / g.clusterSize
	}
	return Usage{used * g.clusterSize, int64(g.clusters) * g.clusterSize, g.clusterSize}, nil
}

// entrySlots is how many entries of a folder a name takes.
func entrySlots(name string) int {
	if _, ok := exact(name); ok {
		return 1
	}
	return 1 + (len(utf16.Encode([]rune(name)))+len(longAt)-1)/len(longAt)
}

// checkRoom refuses files that do not fit, before anything of them is written.
func checkRoom(o Options, files []File) error {
	u, err := Room(o.Size, o.SectorSize, files)
	if err != nil {
		return err
	}
	if u.Used > u.Size {
		return fmt.Errorf("%w: its files need %d bytes in clusters of %d, it has %d", ErrFull, u.Used, u.Cluster, u.Size)
	}
	return nil
}
