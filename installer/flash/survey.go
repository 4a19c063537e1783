package flash

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"kingpost/internal/blockdev"
)

// Survey is what is known of a target before anything is opened for writing.
type Survey struct {
	Path string `json:"path"` // without links
	// Device is set for a disk; else the target is a file, and Exists says whether it is there.
	Device bool `json:"device"`
	Exists bool `json:"exists"`
	blockdev.Survey

	inventory blockdev.Inventory
}

// Look surveys a target: a disk, or a file that may not exist yet.
func Look(inv blockdev.Inventory, name string) (*Survey, error) {
	path, err := filepath.EvalSymlinks(name)
	if errors.Is(err, os.ErrNotExist) {
		dir, err := filepath.EvalSymlinks(filepath.Dir(name))
		if err != nil {
			return nil, fmt.Errorf("the target: %w", err)
		}
		if dir == inv.Dev || strings.HasPrefix(dir, inv.Dev+"/") {
			return nil, &RefusedError{fmt.Sprintf("there is no disk %s; `lsblk` lists those there are", name)}
		}
		return &Survey{Path: filepath.Join(dir, filepath.Base(name)), inventory: inv}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the target: %w", err)
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	st, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("the target: %w", err)
	}
	s := &Survey{Path: path, Exists: true, inventory: inv}
	switch mode := st.Mode(); {
	case mode.IsRegular():
		s.Size, s.SectorSize = st.Size(), 512
		s.Uses = inv.FileUses(path)
	case mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0:
		if err := s.disk(strings.ReplaceAll(strings.TrimPrefix(path, inv.Dev+"/"), "/", "!")); err != nil {
			return nil, err
		}
	default:
		return nil, &RefusedError{fmt.Sprintf("%s is neither a disk nor a regular file", path)}
	}
	if f, err := os.Open(path); err == nil { // who may not read it sees less
		s.Contents = blockdev.Look(f, s.Size)
		f.Close()
	}
	return s, nil
}

func (s *Survey) disk(name string) error {
	var err error
	s.Device = true
	if s.Disk, err = s.inventory.Disk(name); err != nil {
		var not *blockdev.NotDiskError
		if errors.As(err, &not) {
			return &RefusedError{err.Error()}
		}
		return err
	}
	s.Uses, err = s.inventory.Uses(s.Disk)
	return err
}

// NoSerial is what a disk is expected to be called that has no serial number.
const NoSerial = "none"

// Refuse says why nothing may be written to the target; a *RefusedError.
func (s *Survey) Refuse() error {
	switch {
	case s.Device && s.Size == 0:
		return &RefusedError{fmt.Sprintf("there is no medium in %s", s.Path)}
	case s.ReadOnly:
		return &RefusedError{fmt.Sprintf("%s is read-only; is there a switch on it?", s.Path)}
	case len(s.Uses) == 0:
		return nil
	}
	if slices.ContainsFunc(s.Uses, func(u blockdev.Use) bool { return u.System }) {
		return &RefusedError{fmt.Sprintf("%s is the disk that this system runs from", s.Path)}
	}
	var why []string
	for _, u := range s.Uses {
		why = append(why, u.String())
	}
	return &RefusedError{fmt.Sprintf("%s is in use: %s", s.Path, strings.Join(why, "; "))}
}

// Expect compares the disk with the serial number, or WWN, that somebody expects it to have; NoSerial for none. The
// expectation is worth something only where one disk of this machine answers to it, so a second one is a refusal too.
func (s *Survey) Expect(serial string) error {
	answers := func(d blockdev.Disk) bool {
		if serial == NoSerial {
			return len(d.Serials) == 0 && d.WWN == ""
		}
		return d.IsSerial(serial) || d.WWN != "" && d.WWN == serial
	}
	if !answers(s.Disk) {
		has := "no serial number (expect \"" + NoSerial + "\")"
		if len(s.Serials) > 0 {
			has = "the serial number " + strings.Join(s.Serials, " and ")
		} else if s.WWN != "" {
			has = "the WWN " + s.WWN
		}
		return &RefusedError{fmt.Sprintf("%s has %s, %q was expected: disks may have changed places", s.Path, has, serial)}
	}
	all, err := s.inventory.Disks()
	if err != nil {
		return err
	}
	var other []string
	for _, d := range all {
		if d.Name != s.Name && answers(d) {
			other = append(other, fmt.Sprintf("%s (%s, %.1f GB)", d.Path, or(d.Model, "no model"), float64(d.Size)/1e9))
		}
	}
	if len(other) > 0 {
		return &RefusedError{fmt.Sprintf("%q tells nothing: %s answers to it as well; unplug it, or leave --yes away and type", serial, strings.Join(other, " and "))}
	}
	return nil
}

// Word is what a person has to type to say that this is the one: the serial number, else the kernel's name.
func (s *Survey) Word() string {
	if s.Device {
		return or(s.Serial, s.Disk.Name)
	}
	return filepath.Base(s.Path)
}

// Same reports whether o, surveyed later, is still the same disk.
func (s *Survey) Same(o *Survey) bool {
	return s.Path == o.Path && s.Device == o.Device && s.Size == o.Size && s.SectorSize == o.SectorSize && s.Model == o.Model && s.WWN == o.WWN &&
		slices.Equal(s.Serials, o.Serials)
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
