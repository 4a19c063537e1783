package mesh

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of what a resource may ask for.
const (
	MaxGrace   = 10 * time.Minute // Stop.Grace
	maxStart   = time.Hour        // Health.Start, Interval and Timeout
	minMemory  = 1 << 20          // Limits.Memory, bytes: less cannot hold a program's first page tables and stack
	maxStrings = 128 << 10        // all of Args, or all of Env, in bytes; execve(2) takes little more
	maxLog     = 1 << 30          // Limits.Log, bytes
	maxList    = 256              // entries of any other list
)

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// validate checks r by itself.
func (r *Resource) validate(p *problems, at, module string) {
	p.check(at+".id", CheckName(r.ID))
	switch r.Type {
	case KindProcess, KindContainer, KindVolume, KindFile:
	case "":
		p.add(at+".type", "is missing; use process, container, volume or file")
		return
	default:
		p.add(at+".type", "%.40q is unknown; use process, container, volume or file", r.Type)
		return
	}
	r.validateFields(p, at)
	if r.Account != "" {
		p.check(at+".account", checkAccount(r.Account))
	}
	if r.Mode != "" {
		if v, err := strconv.ParseUint(r.Mode, 8, 32); err != nil || v > 0o777 {
			p.add(at+".mode", "%.20q is no mode; octal permission bits up to 0777 are expected", r.Mode)
		}
	}
	if r.Size < 0 {
		p.add(at+".size", "cannot be negative")
	}
	if len(r.Content) > MaxFileContent {
		p.add(at+".content", "has %d bytes, at most %d are allowed", len(r.Content), MaxFileContent)
	}
	if r.Type == KindProcess || r.Type == KindContainer {
		r.validateArtifact(p, at)
		r.validateProgram(p, at)
		r.validateMounts(p, at, module+"/"+r.ID)
		r.validateHealth(p, at+".health", r.Health)
		r.validateHealth(p, at+".ready", r.Ready)
	}
}

// validateFields refuses what a kind does not know, so that nothing that is written is silently without effect.
func (r *Resource) validateFields(p *problems, at string) {
	runs := r.Type == KindProcess || r.Type == KindContainer
	for _, f := range []struct {
		name string
		set  bool
		ok   bool
	}{
		{"name", r.Name != "", r.Type == KindContainer},
		{"image", r.Image != "", r.Type == KindContainer},
		{"bundle", r.Bundle != "", r.Type == KindProcess},
		{"command", r.Command != "", runs},
		{"args", len(r.Args) > 0, runs},
		{"env", len(r.Env) > 0, runs},
		{"network", r.Network != "", runs},
		{"ports", len(r.Ports) > 0, r.Type == KindContainer},
		{"account", r.Account != "", r.Type != KindFile},
		{"capabilities", len(r.Capabilities) > 0, runs},
		{"readOnlyRoot", r.ReadOnlyRoot, r.Type == KindContainer},
		{"limits", r.Limits != Limits{}, runs},
		{"volumes", len(r.Volumes) > 0, runs},
		{"files", len(r.Files) > 0, runs},
		{"secrets", len(r.Secrets) > 0, runs},
		{"after", len(r.After) > 0, runs},
		{"health", r.Health != nil, runs},
		{"ready", r.Ready != nil, runs},
		{"handover", r.Handover != "", runs},
		{"policy", r.Policy != "", runs},
		{"stop", r.Stop != Stop{}, runs},
		{"critical", r.Critical, runs},
		{"seats", len(r.Seats) > 0, runs},
		{"identity", r.Identity, runs},
		{"hostAPI", r.HostAPI, runs},
		{"content", r.Content != "", r.Type == KindFile},
		{"mode", r.Mode != "", r.Type == KindFile || r.Type == KindVolume},
		{"size", r.Size != 0, r.Type == KindVolume},
	} {
		if f.set && !f.ok {
			p.add(at+"."+f.name, "a %s does not have it", r.Type)
		}
	}
}

func (r *Resource) validateArtifact(p *problems, at string) {
	switch {
	case r.Type == KindProcess && r.Bundle == "":
		p.add(at+".bundle", "is missing; a process runs from a bundle")
	case r.Type == KindProcess:
		p.check(at+".bundle", CheckName(r.Bundle))
	case r.ImageName() == "":
		p.add(at+".name", "is missing; a container needs a name, and its image is by default of that name")
	default:
		if r.Name != "" {
			p.check(at+".name", CheckName(r.Name))
		}
		if r.Image != "" {
			p.check(at+".image", CheckName(r.Image))
		}
	}
}

func (r *Resource) validateProgram(p *problems, at string) {
	if r.Command != "" {
		switch {
		case strings.ContainsRune(r.Command, 0):
			p.add(at+".command", "has a NUL byte")
		case r.Type == KindProcess && (!cleanRelative(r.Command)):
			p.add(at+".command", "%.200q is no clean relative path inside the bundle", r.Command)
		}
	}
	size := 0
	for i, a := range r.Args {
		size += len(a)
		if strings.ContainsRune(a, 0) {
			p.add(fmt.Sprintf("%s.args[%d]", at, i), "has a NUL byte")
		}
	}
	if size > maxStrings {
		p.add(at+".args", "are %d bytes together, at most %d are allowed", size, maxStrings)
	}
	size = 0
	for _, k := range slices.Sorted(maps.Keys(r.Env)) {
		v := r.Env[k]
		size += len(k) + len(v) + 2
		switch {
		case !envName.MatchString(k):
			p.add(at+".env", "%.60q is no name of an environment variable", k)
		case strings.HasPrefix(k, "KINGPOST_"):
			p.add(at+".env."+k, "names that start with KINGPOST_ are set by the host")
		case strings.ContainsRune(v, 0):
			p.add(at+".env."+k, "has a NUL byte")
		}
	}
	if size > maxStrings {
		p.add(at+".env", "is %d bytes together, at most %d are allowed", size, maxStrings)
	}
	switch r.Network {
	case "", "host":
	case "private":
		if r.Type == KindProcess {
			p.add(at+".network", "a process has the host's network only")
		}
	default:
		p.add(at+".network", "%.40q is unknown; use host or private", r.Network)
	}
	for i, port := range r.Ports {
		pa := fmt.Sprintf("%s.ports[%d]", at, i)
		if port.Host < 1 || port.Host > 65535 {
			p.add(pa+".host", "%d is no port; 1 to 65535 are", port.Host)
		}
		if port.Container < 1 || port.Container > 65535 {
			p.add(pa+".container", "%d is no port; 1 to 65535 are", port.Container)
		}
		if port.Protocol != "" && port.Protocol != "tcp" && port.Protocol != "udp" {
			p.add(pa+".protocol", "%.20q is unknown; use tcp or udp", port.Protocol)
		}
		if r.Network == "host" {
			p.add(pa, "a container on the host's network publishes nothing; it listens itself")
		}
	}
	seen := map[string]bool{}
	for i, c := range r.Capabilities {
		ca := fmt.Sprintf("%s.capabilities[%d]", at, i)
		if _, ok := CapabilityNumber(c); !ok {
			p.add(ca, "%.40q is no capability; they are written like CAP_NET_BIND_SERVICE", c)
		} else if seen[c] {
			p.add(ca, "%s stands twice", c)
		}
		seen[c] = true
	}
	if m := r.Limits.Memory; m < 0 || m > 0 && m < minMemory {
		p.add(at+".limits.memory", "%d bytes is too little; at least %d, or 0 for no limit", m, minMemory)
	}
	if c := r.Limits.CPU; c < 0 || c > 0 && c < 0.01 || c > 4096 || c != c {
		p.add(at+".limits.cpu", "%v CPUs is out of range; 0.01 to 4096, or 0 for no limit", c)
	}
	if r.Limits.Pids < 0 {
		p.add(at+".limits.pids", "cannot be negative")
	}
	if l := r.Limits.Log; l != 0 && (l < MinLog || l > maxLog) {
		p.add(at+".limits.log", "%d bytes is out of range; %d to %d, or 0 for the default of %d", l, MinLog, maxLog, DefaultLog)
	}
	for i, a := range r.After {
		aa := fmt.Sprintf("%s.after[%d]", at, i)
		module, id, both := strings.Cut(a, "/")
		if !both {
			module, id = "self", a
		}
		if CheckName(module) != nil || CheckName(id) != nil {
			p.add(aa, "%.130q is neither ID nor MODULE/ID", a)
		}
	}
	if len(r.After) > maxList {
		p.add(at+".after", "has %d entries, at most %d are allowed", len(r.After), maxList)
	}
	switch r.Policy {
	case "", PolicyAlways, PolicyOnFailure, PolicyNever, PolicyOnce:
	default:
		p.add(at+".policy", "%.40q is unknown; use always, on-failure, never or once", r.Policy)
	}
	switch r.Handover {
	case "", HandoverStopStart:
	default:
		p.add(at+".handover", "%.40q is unknown; use stop-start, or nothing for the way that fits", r.Handover)
	}
	if r.Stop.Signal != "" {
		if _, ok := SignalNumber(r.Stop.Signal); !ok {
			p.add(at+".stop.signal", "%.40q is no signal that stops; they are written like SIGTERM", r.Stop.Signal)
		}
	}
	if time.Duration(r.Stop.Grace) > MaxGrace {
		p.add(at+".stop.grace", "%s is longer than %s", time.Duration(r.Stop.Grace), MaxGrace)
	}
	names := map[string]bool{}
	for i, s := range r.Seats {
		sa := fmt.Sprintf("%s.seats[%d]", at, i)
		p.check(sa, CheckName(s))
		if names[s] {
			p.add(sa, "%.64q stands twice", s)
		}
		names[s] = true
	}
}

func (r *Resource) validateMounts(p *problems, at, key string) {
	seen := map[string]string{}
	one := func(pa string, m Mount, id, other, want string) {
		if id == "" {
			p.add(pa+"."+want, "is missing")
		}
		if other != "" {
			p.add(pa, "names a volume and a file; each has its own list")
		}
		if err := r.checkMountPath(m.Path); err != nil {
			p.add(pa+".path", "%s; give %s another path", err, key)
			return
		}
		if first, ok := seen[m.Path]; ok {
			p.add(pa+".path", "%q is taken by %s", m.Path, first)
		}
		seen[m.Path] = pa
	}
	for i, m := range r.Volumes {
		one(fmt.Sprintf("%s.volumes[%d]", at, i), m, m.Volume, m.File, "volume")
	}
	for i, m := range r.Files {
		one(fmt.Sprintf("%s.files[%d]", at, i), m, m.File, m.Volume, "file")
	}
	for i, x := range r.Secrets {
		pa := fmt.Sprintf("%s.secrets[%d]", at, i)
		one(pa, Mount{Path: x.Path}, x.Secret, "", "secret")
		if x.Secret != "" {
			p.check(pa+".secret", CheckName(x.Secret))
		}
	}
	if n := max(len(r.Volumes), len(r.Files), len(r.Secrets)); n > maxList {
		p.add(at, "mounts %d volumes, files or secrets, at most %d are allowed", n, maxList)
	}
}

// within reports whether s is dir or below it; both are clean.
func within(s, dir string) bool { return s == dir || strings.HasPrefix(s, dir+"/") }

func hasDotDot(s string) bool {
	for _, e := range strings.Split(s, "/") {
		if e == ".." {
			return true
		}
	}
	return false
}

func cleanRelative(s string) bool {
	return s != "." && path.Clean(s) == s && !strings.HasPrefix(s, "/") && !hasDotDot(s)
}

func (r *Resource) validateHealth(p *problems, at string, h *Health) {
	if h == nil {
		return
	}
	n := 0
	if h.Seat {
		n++
		if len(r.Seats) == 0 {
			p.add(at+".seat", "the resource holds no seat that could be asked")
		}
	}
	if h.HTTP != "" {
		n++
		p.check(at+".http", checkHealthURL(h.HTTP))
	}
	if h.TCP != "" {
		n++
		if _, port, err := net.SplitHostPort(h.TCP); err != nil {
			p.add(at+".tcp", "%.200q is not HOST:PORT", h.TCP)
		} else if v, err := strconv.Atoi(port); err != nil || v < 1 || v > 65535 {
			p.add(at+".tcp", "%.20q is no port", port)
		}
	}
	if len(h.Command) > 0 {
		n++
		for i, a := range h.Command {
			if strings.ContainsRune(a, 0) || i == 0 && a == "" {
				p.add(fmt.Sprintf("%s.command[%d]", at, i), "is empty or has a NUL byte")
			}
		}
	}
	if n != 1 {
		p.add(at, "exactly one of seat, http, tcp and command is needed, %d are there", n)
	}
	for _, d := range []struct {
		name string
		v    Duration
		min  time.Duration
	}{{"interval", h.Interval, 100 * time.Millisecond}, {"timeout", h.Timeout, 10 * time.Millisecond}, {"start", h.Start, time.Second}} {
		if v := time.Duration(d.v); v != 0 && (v < d.min || v > maxStart) {
			p.add(at+"."+d.name, "%s is out of range; %s to %s", v, d.min, maxStart)
		}
	}
	if h.Retries < 0 || h.Retries > 100 {
		p.add(at+".retries", "%d is out of range; 1 to 100, or 0 for the default", h.Retries)
	}
}

func checkHealthURL(s string) error {
	if rest, ok := strings.CutPrefix(s, "unix:"); ok {
		sock, _, found := strings.Cut(rest, ":/")
		if !found || !strings.HasPrefix(sock, "/") || path.Clean(sock) != sock || hasDotDot(sock) {
			return fmt.Errorf("%.200q is not unix:/PATH:/URL", s)
		}
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return fmt.Errorf("%.200q is neither http://HOST:PORT/... nor unix:/PATH:/URL", s)
	}
	return nil
}

func (p Port) protocol() string {
	if p.Protocol == "" {
		return "tcp"
	}
	return p.Protocol
}
