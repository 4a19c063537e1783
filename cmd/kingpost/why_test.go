package main

import (
	"strings"
	"testing"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// The table of resources shows what runs, what is declared where that is something else, and why the two differ.
func TestResourcesTable(t *testing.T) {
	old, next := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	running := hostapi.ResourceStatus{Key: "m/a", Type: mesh.KindContainer, State: "healthy", PID: 7, Digest: old}
	change := func(f func(*hostapi.ResourceStatus)) hostapi.ResourceStatus {
		r := running
		f(&r)
		return r
	}
	same := &hostapi.Wanted{Type: mesh.KindContainer, Digest: old}
	other := &hostapi.Wanted{Type: mesh.KindProcess, Digest: next}
	for name, c := range map[string]struct {
		r    hostapi.ResourceStatus
		want []string
		not  string
	}{
		"as declared": {change(func(r *hostapi.ResourceStatus) { r.Wanted = same }), []string{"aaaaaaaaaaaa"}, "declared:"},
		"fallback": {change(func(r *hostapi.ResourceStatus) { r.Wanted, r.Reason = other, "what is declared failed" }),
			[]string{"container, declared: process", "aaaaaaaaaaaa, declared: bbbbbbbbbbbb", "what is declared failed"}, ""},
		"handover": {change(func(r *hostapi.ResourceStatus) {
			r.Wanted = other
			r.Handover = &hostapi.Handover{Way: mesh.HandoverOverlap, Why: "they share nothing exclusive", State: "under way", Digest: next}
		}), []string{"handover to bbbbbbbbbbbb by overlap, since they share nothing exclusive"}, "exclusive;"},
		"handed over": {change(func(r *hostapi.ResourceStatus) {
			r.Wanted = same
			r.Handover = &hostapi.Handover{Way: mesh.HandoverOverlap, Why: "they share nothing exclusive", State: "done", Digest: old}
		}), nil, "overlap"},
		"not declared": {running, []string{"no longer declared"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := resourcesTable(&b, []hostapi.ResourceStatus{c.r}, time.Now()); err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(b.String(), want) {
					t.Errorf("%q is missing in\n%s", want, b.String())
				}
			}
			if c.not != "" && strings.Contains(b.String(), c.not) {
				t.Errorf("%q is in\n%s", c.not, b.String())
			}
		})
	}
}
