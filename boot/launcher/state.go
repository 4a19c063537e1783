package launcher

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// BakedIn is the digest by which the host in the root image is known; the root's own hash pins its bytes.
const BakedIn = "baked-in"

// Host is a host program.
type Host struct {
	// Digest is BakedIn, or the digest of the bundle that brought it.
	Digest string `json:"digest"`
	// Path is the program. It is checked against SHA256 (hex) before each start, except for the baked-in one.
	Path   string `json:"path,omitempty"`
	SHA256 string `json:"sha256,omitempty"`
}

// Record is what is remembered of one host, by digest: one host's failures never count against another's.
type Record struct {
	Host
	// Failures counts the failures since it was last healthy, across reboots.
	Failures int `json:"failures"`
	// Good is set once it was healthy.
	Good bool `json:"good,omitempty"`
	// Last is why it failed last.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}

// State is what the launcher keeps on disk for one release: a new release starts with its own host.
type State struct {
	Root string `json:"root"` // root hash of the release
	// Current is the digest of the host that is to run, Good that of the last one that was healthy.
	Current string    `json:"current"`
	Good    string    `json:"good"`
	Hosts   []*Record `json:"hosts"`
}

// maxReleases bounds how many releases' states are kept: two slots, and one more for a disk that comes back from elsewhere.
const maxReleases = 3

// maxHosts bounds the hosts that are remembered for one release.
const maxHosts = 8

// File is the state file: the states of the last releases, newest last.
type File struct {
	Releases []*State `json:"releases"`
}

// ParseFile reads a state file. What does not make sense in it is an error: the launcher then starts afresh with the
// baked-in host and says so.
func ParseFile(b []byte) (*File, error) {
	var f File
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("the launcher's state: %w", err)
	}
	for _, s := range f.Releases {
		if s == nil {
			return nil, fmt.Errorf("the launcher's state has an empty release")
		}
		seen := map[string]bool{}
		for _, r := range s.Hosts {
			if r == nil || r.Failures < 0 || seen[r.Digest] {
				return nil, fmt.Errorf("the launcher's state of release %.12s has a bad host record", s.Root)
			}
			seen[r.Digest] = true
			if r.Digest == BakedIn {
				continue
			}
			if err := r.Host.check(); err != nil {
				return nil, fmt.Errorf("the launcher's state of release %.12s: %w", s.Root, err)
			}
		}
	}
	return &f, nil
}

// check accepts a host that was delivered.
func (h Host) check() error {
	d, ok := strings.CutPrefix(h.Digest, "sha256:")
	if b, err := hex.DecodeString(d); !ok || err != nil || len(b) != 32 {
		return fmt.Errorf("%.80q is no host's digest", h.Digest)
	}
	if b, err := hex.DecodeString(h.SHA256); err != nil || len(b) != 32 {
		return fmt.Errorf("%.80q is no SHA-256 of a program", h.SHA256)
	}
	if !filepath.IsAbs(h.Path) || filepath.Clean(h.Path) != h.Path {
		return fmt.Errorf("%.80q is no absolute path of a program", h.Path)
	}
	return nil
}

// For returns the state of the release with this root hash, made anew where there is none, as the newest one.
func (f *File) For(root string) *State {
	var s *State
	rest := make([]*State, 0, len(f.Releases)+1)
	for _, o := range f.Releases {
		if o.Root == root {
			s = o
		} else {
			rest = append(rest, o)
		}
	}
	if s == nil {
		s = &State{Root: root, Current: BakedIn, Good: BakedIn}
	}
	if len(rest) >= maxReleases {
		rest = rest[len(rest)-maxReleases+1:]
	}
	f.Releases = append(rest, s)
	return s
}

func (s *State) find(digest string) *Record {
	for _, r := range s.Hosts {
		if r.Digest == digest {
			return r
		}
	}
	return nil
}

func (s *State) record(h Host) *Record {
	r := s.find(h.Digest)
	if r == nil {
		r = &Record{Host: h}
		s.Hosts = append(s.Hosts, r)
		s.forget()
	}
	return r
}

// forget drops the oldest records that nothing refers to.
func (s *State) forget() {
	for i := 0; len(s.Hosts) > maxHosts && i < len(s.Hosts)-1; {
		switch s.Hosts[i].Digest {
		case s.Current, s.Good, BakedIn:
			i++
		default:
			s.Hosts = append(s.Hosts[:i], s.Hosts[i+1:]...)
		}
	}
}

func (s *State) failures(digest string) int {
	if r := s.find(digest); r != nil {
		return r.Failures
	}
	return 0
}

// Boot prepares s for the starts of a new boot: a baked-in host that was given up gets one more chance in each, since a
// person who power-cycles a node expects it to try.
func (s *State) Boot(max int) {
	if r := s.find(BakedIn); r != nil && r.Failures >= max {
		r.Failures = max - 1
	}
}

// Next is the host to start, baked being the one in the root image. When the current one has failed too often it rolls
// back: to the last good one, then to the baked-in one. False: that has failed too often as well.
func (s *State) Next(baked Host, max int) (Host, bool) {
	for _, d := range []string{s.Current, s.Good, BakedIn} {
		if d == BakedIn {
			if s.failures(BakedIn) >= max {
				continue
			}
			s.Current = BakedIn
			return baked, true
		}
		if r := s.find(d); r != nil && r.Failures < max {
			s.Current = d
			return r.Host, true
		}
	}
	return Host{}, false
}

// Trying notes that h is about to start, and reports whether the note must be on the disk first. A host that was never
// good counts as failed until it proves otherwise, since it may take the machine with it. Others do not: a cut of the
// power is not their fault.
func (s *State) Trying(h Host, now time.Time) bool {
	if h.Digest == BakedIn {
		return false
	}
	r := s.record(h)
	if r.Good {
		return false
	}
	r.Failures++
	r.Last, r.At = "it was started and has not become healthy", now
	return true
}

// Failed notes a failure of h.
func (s *State) Failed(h Host, why string, now time.Time) int {
	r := s.record(h)
	if h.Digest == BakedIn || r.Good {
		r.Failures++ // otherwise Trying has counted it
	}
	r.Last, r.At = why, now
	return r.Failures
}

// Stopped notes that h ended as it was asked to: no failure.
func (s *State) Stopped(h Host) bool {
	r := s.find(h.Digest)
	if r == nil || h.Digest == BakedIn || r.Good || r.Failures == 0 {
		return false
	}
	r.Failures--
	return true
}

// Healthy notes that h has been up long enough. It reports whether that is news.
func (s *State) Healthy(h Host) bool {
	if h.Digest == BakedIn && s.find(BakedIn) == nil && s.Good == BakedIn {
		return false // nothing to write in the usual case
	}
	r := s.record(h)
	news := r.Failures != 0 || !r.Good || s.Good != h.Digest
	r.Failures, r.Good, r.Last = 0, true, ""
	s.Good = h.Digest
	return news
}

// Offer makes h, a successor that the running host delivers, the current one. One that has failed too often is refused by
// its digest; asking again does not help, a different one does.
func (s *State) Offer(h Host, max int) error {
	if err := h.check(); err != nil {
		return err
	}
	if r := s.find(h.Digest); r != nil {
		if r.Failures >= max {
			return fmt.Errorf("the host %s has failed %d times, last: %s; deliver another one", h.Digest, r.Failures, r.Last)
		}
		r.Host = h
	}
	s.record(h)
	s.Current = h.Digest
	return nil
}
