package api

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The table in docs/host.md says who may call what, as the endpoints do.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../../docs/host.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	rows := 0
	for _, e := range endpoints() {
		who, claim := "everybody", "always"
		if r := e.rule; !r.Open {
			var names []string
			for _, role := range r.Roles {
				name := string(role)
				if name == "component" && len(r.Modules) > 0 {
					name += " " + strings.Join(r.Modules, " ")
				}
				names = append(names, name)
			}
			who = strings.Join(names, ", ")
			switch {
			case !r.Claim:
				claim = "never"
			case !r.Returning:
				claim = "before the raise"
			}
		}
		row := fmt.Sprintf("\n| `%s %s` | %s | %s | ", e.method, e.pattern, who, claim)
		if !strings.Contains(doc, row) {
			t.Errorf("docs/host.md does not say%s", row)
		}
		rows++
	}
	if n := len(regexp.MustCompile("(?m)^[|] `[A-Z]+ /v1/").FindAllString(doc, -1)); n != rows {
		t.Errorf("docs/host.md has %d rows of /v1/, and there are %d endpoints", n, rows)
	}
}
