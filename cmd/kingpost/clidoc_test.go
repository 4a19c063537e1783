package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// The table of commands in docs/cli.md has every command that there is and no other.
func TestCommandsAreDocumented(t *testing.T) {
	there := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.Name() != "help" && sub.Name() != "completion" && !sub.Hidden {
				walk(sub)
			}
		}
		if !c.HasSubCommands() {
			there[strings.TrimPrefix(c.CommandPath(), "kingpost ")] = true
		}
	}
	walk(newRootCommand())

	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| command | what for |\n|---|---|\n")
	if !found {
		t.Fatal("docs/cli.md has no table of commands")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	said := map[string]bool{}
	code := regexp.MustCompile("`([^`]+)`")
	for row := range strings.Lines(table) {
		first := strings.Split(row, " | ")[0]
		for _, m := range code.FindAllStringSubmatch(first, -1) {
			var words []string
			for _, w := range strings.Fields(m[1]) {
				if w != strings.ToLower(w) || strings.ContainsAny(w[:1], "-[") {
					break // its arguments
				}
				words = append(words, w)
			}
			said[strings.Join(words, " ")] = true
		}
	}
	if d := cmp.Diff(slices.Sorted(maps.Keys(there)), slices.Sorted(maps.Keys(said))); d != "" {
		t.Errorf("the table of docs/cli.md is not what there is (- there, + said):\n%s", d)
	}
}
