package launcher

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"kingpost/internal/mesh"
)

// BakedIn is the digest by which the host in the root image is known.
const BakedIn = mesh.HostBakedIn

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
	// Damaged says what is wrong with its program on disk. It is not started until it was delivered again, and that is
	// no failure: the digest has done nothing.
	Damaged string `json:"damaged,omitempty"`
	// Last is why it failed last.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}

// limit is how often r may fail in a row.
func (r *Record) limit(l Limits) int {
	if r.Good || r.Digest == BakedIn {
		return l.MaxFailures
	}
	return l.MaxTrials
}

// quarantined says whether r has failed too often.
func (r *Record) quarantined(l Limits) bool { return r.Failures >= r.limit(l) }

// State is what the launcher keeps on disk for one release: a new release starts with its own host.
type State struct {
	Root string `json:"root"` // root hash of the release
	// Current is the digest of the host that is to run, Good that of the last one that was healthy, Previous that of the
	// one that was good before it.
	Current  string    `json:"current"`
	Good     string    `json:"good"`
	Previous string    `json:"previous,omitempty"`
	Hosts    []*Record `json:"hosts"`
}

// maxReleases bounds how many releases' states are kept: two slots, and one more for a disk that comes back from elsewhere.
const maxReleases = 3

// maxHosts bounds the hosts that are remembered for one release.
const maxHosts = 32

// fileFormat is the version of the state file. It is raised only by a change that an older launcher would get wrong;
// what it merely does not know it leaves out.
const fileFormat = 1

// ErrNewer says that a state file was written by a launcher that is newer than this one.
var ErrNewer = errors.New("it was written by a newer release")

// File is the state file: the states of the last releases, newest last.
type File struct {
	Format   int      `json:"format"`
	Releases []*State `json:"releases"`
}

// ParseFile reads a state file. What does not make sense in it is an error, and ErrNewer a format that this launcher does
// not know: the launcher then starts afresh with the baked-in host and says so.
func ParseFile(b []byte) (*File, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("the launcher's state: %w", err)
	}
	if head.Format > fileFormat {
		return nil, fmt.Errorf("the launcher's state has format %d, and %d is known: %w", head.Format, fileFormat, ErrNewer)
	}
	var f File
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("the launcher's state: %w", err)
	}
	f.Format = fileFormat
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

// For returns the state of the release with this root hash, made anew where there is none, as the newest one. A new one
// inherits who is in quarantine, which ends by an operator's word and not by an upgrade.
func (f *File) For(root string, l Limits) *State {
	f.Format = fileFormat
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
		if len(rest) > 0 {
			for _, r := range rest[len(rest)-1].Hosts {
				if r.Digest != BakedIn && r.quarantined(l) {
					copied := *r
					s.Hosts = append(s.Hosts, &copied)
				}
			}
		}
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
		s.forget(h.Digest)
	}
	return r
}

// forget drops the oldest records that nothing refers to, but never fresh.
func (s *State) forget(fresh string) {
	for i := 0; len(s.Hosts) > maxHosts && i < len(s.Hosts)-1; {
		switch s.Hosts[i].Digest {
		case s.Current, s.Good, s.Previous, BakedIn, fresh:
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

// FailedBefore is how often in a row h has failed before the start that is under way.
func (s *State) FailedBefore(h Host) int {
	r := s.find(h.Digest)
	if r == nil {
		return 0
	}
	if h.Digest != BakedIn && !r.Good {
		return r.Failures - 1 // Trying has counted this one
	}
	return r.Failures
}

// Boot prepares s for the starts of a new boot: a baked-in host that was given up gets one more chance in each, since a
// person who power-cycles a node expects it to try.
func (s *State) Boot(l Limits) {
	if r := s.find(BakedIn); r != nil && r.Failures >= l.MaxFailures {
		r.Failures = l.MaxFailures - 1
	}
}

// Next is the host to start, baked being the one in the root image. When the current one has failed too often, or is
// damaged, it rolls back: to the last good one, to the one before it, then to the baked-in one. False: that has failed
// too often as well.
func (s *State) Next(baked Host, l Limits) (Host, bool) {
	for _, d := range []string{s.Current, s.Good, s.Previous, BakedIn} {
		if d == BakedIn {
			if s.failures(BakedIn) >= l.MaxFailures {
				continue
			}
			s.Current = BakedIn
			return baked, true
		}
		if r := s.find(d); r != nil && !r.quarantined(l) && r.Damaged == "" {
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

// Damage notes that the program of h on the disk is not the one that was delivered.
func (s *State) Damage(h Host, why string, now time.Time) {
	r := s.record(h)
	r.Damaged, r.At = why, now
}

// Healthy notes that h has been up long enough. It reports whether that is news.
func (s *State) Healthy(h Host) bool {
	if h.Digest == BakedIn && s.find(BakedIn) == nil && s.Good == BakedIn {
		return false // nothing to write in the usual case
	}
	r := s.record(h)
	news := r.Failures != 0 || !r.Good || s.Good != h.Digest
	r.Failures, r.Good, r.Last = 0, true, ""
	if s.Good != h.Digest {
		s.Previous, s.Good = s.Good, h.Digest
	}
	return news
}

// Offer makes h, a successor that the running host delivers, the current one; the digest BakedIn alone asks for the one
// in the root image. One that has failed too often is refused by its digest: asking again does not help, a different one
// or an operator who clears it does.
func (s *State) Offer(h Host, l Limits) error {
	if h.Digest == BakedIn {
		if s.failures(BakedIn) >= l.MaxFailures {
			return fmt.Errorf("the host of this release has failed %d times, last: %s; deliver another one", s.failures(BakedIn), s.find(BakedIn).Last)
		}
		s.Current = BakedIn
		return nil
	}
	if err := h.check(); err != nil {
		return err
	}
	if r := s.find(h.Digest); r != nil {
		if r.quarantined(l) {
			return fmt.Errorf("the host %s is in quarantine: it failed %d times, last: %s; deliver another one, or clear %s to have it tried again", h.Digest, r.Failures, r.Last, mesh.HostKey)
		}
		r.Host, r.Damaged = h, ""
	}
	s.record(h)
	s.Current = h.Digest
	return nil
}

// Clear forgets the failures of a host, by an operator's word. It reports whether there was anything to forget.
func (s *State) Clear(digest string) bool {
	r := s.find(digest)
	if r == nil || r.Failures == 0 && r.Damaged == "" && r.Last == "" {
		return false
	}
	r.Failures, r.Damaged, r.Last = 0, "", ""
	return true
}

// info is what others may know of s.
func (s *State) info(l Limits) mesh.LauncherInfo {
	i := mesh.LauncherInfo{Current: s.Current, Good: s.Good, Previous: s.Previous, ProveSeconds: l.HealthyAfter.Seconds()}
	for _, r := range s.Hosts {
		i.Hosts = append(i.Hosts, mesh.LauncherHost{
			Digest: r.Digest, Failures: r.Failures, Limit: r.limit(l), Good: r.Good, Quarantined: r.quarantined(l),
			Damaged: r.Damaged, Last: r.Last, At: r.At,
		})
	}
	return i
}
