package fat32

import (
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"unicode/utf16"
)

// Places in a folder entry, and its attributes.
const (
	entrySize   = 32
	atAttr      = 11
	atCreated   = 14 // time, then date
	atAccessed  = 18
	atClusterHi = 20
	atTime      = 22
	atDate      = 24
	atClusterLo = 26
	atSize      = 28

	attrLabel = 0x08
	attrDir   = 0x10
	attrFile  = 0x20 // archive
	attrLong  = 0x0f

	deleted  = 0xe5
	lastLong = 0x40
)

// entry is one name in a folder.
type entry struct {
	name  string   // long, or short where there is no long one
	short [11]byte // as on disk
	attr  byte
	first uint32
	size  int64
	slots []int64 // where its 32-byte pieces are, in bytes of the file system, the short one last
}

func (e *entry) dir() bool { return e.attr&attrDir != 0 }

// folder is a folder's bytes and where they are.
type folder struct {
	clusters []uint32
	data     []byte
}

func (f *FS) readFolder(first uint32) (*folder, error) {
	chain, err := f.chain(first, maxDirSize)
	if err != nil {
		return nil, err
	}
	d := &folder{clusters: chain, data: make([]byte, int64(len(chain))*f.clusterSize)}
	for i, c := range chain {
		b := d.data[int64(i)*f.clusterSize:][:f.clusterSize]
		if n, err := f.d.ReadAt(b, f.clusterAt(c)); n < len(b) {
			return nil, fmt.Errorf("read folder: %w", err)
		}
	}
	return d, nil
}

// at is where byte off of a folder is, in bytes of the file system.
func (f *FS) at(d *folder, off int) int64 {
	return f.clusterAt(d.clusters[int64(off)/f.clusterSize]) + int64(off)%f.clusterSize
}

// parse returns a folder's names, without "." and ".." and the label.
func (f *FS) parse(d *folder) []entry {
	var out []entry
	var long []uint16
	var slots []int64
	var sum byte
	le := binary.LittleEndian
	for off := 0; off+entrySize <= len(d.data); off += entrySize {
		b := d.data[off:][:entrySize]
		if b[0] == 0 {
			break
		}
		if b[0] == deleted {
			long, slots = nil, nil
			continue
		}
		if b[atAttr]&0x3f == attrLong {
			if b[0]&lastLong != 0 {
				long, slots, sum = nil, nil, b[13]
			}
			var part []uint16
			for _, i := range longAt {
				part = append(part, le.Uint16(b[i:]))
			}
			long = append(part, long...)
			slots = append(slots, f.at(d, off))
			if len(slots) > maxLongSlots {
				long, slots = nil, nil
			}
			continue
		}
		e := entry{
			short: [11]byte(b[:11]), attr: b[atAttr], size: int64(le.Uint32(b[atSize:])),
			first: uint32(le.Uint16(b[atClusterHi:]))<<16 | uint32(le.Uint16(b[atClusterLo:])),
			slots: append(slots, f.at(d, off)),
		}
		e.name = shortName(e.short)
		if len(long) > 0 && sum == checksum(e.short) {
			if end := slices.Index(long, 0); end >= 0 {
				long = long[:end]
			}
			e.name = string(utf16.Decode(long))
		} else {
			e.slots = e.slots[len(e.slots)-1:]
		}
		long, slots = nil, nil
		if e.attr&attrLabel != 0 || e.name == "." || e.name == ".." {
			continue
		}
		out = append(out, e)
	}
	return out
}

func find(entries []entry, name string) *entry {
	for i := range entries {
		if strings.EqualFold(entries[i].name, name) || strings.EqualFold(shortName(entries[i].short), name) {
			return &entries[i]
		}
	}
	return nil
}

func split(p string) []string {
	p = strings.Trim(path.Clean("/"+p), "/")
	if p == "" {
		return nil
	}
	return strings.Split(p, "/")
}

// lookup returns the entry at p, nil for the root folder.
func (f *FS) lookup(p string) (*entry, error) {
	var at *entry
	first := f.root
	for i, name := range split(p) {
		if i > 0 && !at.dir() {
			return nil, ErrNotFound
		}
		d, err := f.readFolder(first)
		if err != nil {
			return nil, err
		}
		if at = find(f.parse(d), name); at == nil {
			return nil, ErrNotFound
		}
		first = at.first
	}
	return at, nil
}

// Info is one entry of a folder.
type Info struct {
	Name string
	Size int64 // bytes
	Dir  bool
}

// List returns the entries of a folder ("" is the root), sorted by name.
func (f *FS) List(p string) ([]Info, error) {
	first := f.root
	e, err := f.lookup(p)
	if err == nil && e != nil {
		first = e.first
		if !e.dir() {
			err = fmt.Errorf("it is a file")
		}
	}
	var d *folder
	if err == nil {
		d, err = f.readFolder(first)
	}
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", p, err)
	}
	var out []Info
	for _, e := range f.parse(d) {
		out = append(out, Info{Name: e.name, Size: e.size, Dir: e.dir()})
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// ReadFile returns a file's content; more than limit bytes is an error.
func (f *FS) ReadFile(p string, limit int64) ([]byte, error) {
	r, err := f.OpenFile(p)
	if err != nil {
		return nil, err
	}
	if r.Size() > limit {
		return nil, fmt.Errorf("read %q: it has %d bytes, at most %d are allowed", p, r.Size(), limit)
	}
	b := make([]byte, r.Size())
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, fmt.Errorf("read %q: %w", p, err)
	}
	return b, nil
}

// OpenFile returns a reader over a file's content.
func (f *FS) OpenFile(p string) (*io.SectionReader, error) {
	e, err := f.lookup(p)
	if err == nil && (e == nil || e.dir()) {
		err = fmt.Errorf("it is a folder")
	}
	r := &content{f: f}
	if err == nil && e.size > 0 {
		r.clusters, err = f.chain(e.first, e.size)
		if err == nil && int64(len(r.clusters))*f.clusterSize < e.size {
			err = fmt.Errorf("the file system is damaged: the file has %d bytes in %d clusters", e.size, len(r.clusters))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", p, err)
	}
	return io.NewSectionReader(r, 0, e.size), nil
}

// content reads a chain of clusters; the section reader around it keeps to the file's size.
type content struct {
	f        *FS
	clusters []uint32
}

func (r *content) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		i, in := (off+int64(done))/r.f.clusterSize, (off+int64(done))%r.f.clusterSize
		if i >= int64(len(r.clusters)) {
			return done, io.EOF
		}
		// As far as clusters lie one after another, in one read.
		run := i + 1
		for run < int64(len(r.clusters)) && r.clusters[run] == r.clusters[run-1]+1 && (run-i)*r.f.clusterSize-in < int64(len(p)-done) {
			run++
		}
		n := min(int64(len(p)-done), (run-i)*r.f.clusterSize-in)
		got, err := r.f.d.ReadAt(p[done:done+int(n)], r.f.clusterAt(r.clusters[i])+in)
		done += got
		if int64(got) < n {
			return done, err
		}
	}
	return done, nil
}
