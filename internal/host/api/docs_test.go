package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"kingpost/internal/blockdev"
	"kingpost/internal/mesh/hostapi"
)

// The table in docs/api.md says who may call what and what for, as the endpoints do.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	rows := 0
	cs := contracts()
	for _, e := range endpoints() {
		key := e.method + " " + e.pattern
		c, ok := cs[key]
		if !ok || c.what == "" {
			t.Errorf("%s has no contract", key)
			continue
		}
		delete(cs, key)
		who, claim := describe(e.rule)
		query := ""
		for i, p := range c.query {
			query += map[bool]string{true: " ?", false: " &"}[i == 0] + p.name
		}
		row := fmt.Sprintf("\n| `%s%s` | %s | %s | %s |", key, query, who, claim, c.what)
		if !strings.Contains(doc, row) {
			t.Errorf("docs/api.md does not say%s", row)
		}
		rows++
	}
	for key := range cs {
		t.Errorf("%s has a contract and no endpoint", key)
	}
	if n := len(regexp.MustCompile("(?m)^[|] `[A-Z]+ /v1/").FindAllString(doc, -1)); n != rows {
		t.Errorf("docs/api.md has %d rows of /v1/, and there are %d endpoints", n, rows)
	}
}

// The document is whole: every reference leads somewhere, every endpoint is in it with what it takes and gives.
func TestOpenAPI(t *testing.T) {
	b, err := json.Marshal(Document())
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Parameters  []struct{ Name, In string }
			RequestBody *struct{}
			Responses   map[string]struct {
				Content map[string]struct{ Schema json.RawMessage }
			}
		}
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %q", d.OpenAPI)
	}
	ids := map[string]bool{}
	for _, e := range endpoints() {
		op, ok := d.Paths[e.pattern][strings.ToLower(e.method)]
		if !ok {
			t.Errorf("%s %s is not in it", e.method, e.pattern)
			continue
		}
		if ids[op.OperationID] {
			t.Errorf("the operation %s is there twice", op.OperationID)
		}
		ids[op.OperationID] = true
		in := 0
		for _, p := range op.Parameters {
			if p.In == "path" {
				in++
			}
		}
		if want := strings.Count(e.pattern, "{"); in != want {
			t.Errorf("%s has %d parameters in its path, wanted %d", e.pattern, in, want)
		}
		if (op.RequestBody != nil) != (contracts()[e.method+" "+e.pattern].body != nil) {
			t.Errorf("%s %s: a body is in one and not in the other", e.method, e.pattern)
		}
		for _, status := range []string{"200", "default"} {
			if len(op.Responses[status].Content) == 0 {
				t.Errorf("%s %s says nothing of its answer %s", e.method, e.pattern, status)
			}
		}
	}
	for _, m := range regexp.MustCompile(`"#/components/schemas/([^"]+)"`).FindAllStringSubmatch(string(b), -1) {
		if s := d.Components.Schemas[m[1]]; len(s) == 0 || string(s) == "null" {
			t.Errorf("there is no schema %s", m[1])
		}
	}
	for name, want := range map[string]string{"ResourceStatus": `"handover"`, "Declaration": `"epoch"`, "Resource": `"ready"`} {
		s := d.Components.Schemas[name]
		if name == "Resource" {
			s = d.Components.Schemas["Declared"] // it is embedded
		}
		if !strings.Contains(string(s), want) {
			t.Errorf("the schema %s does not have %s: %s", name, want, s)
		}
	}
}

// What a handler answers has the fields that the document requires, and no others.
func TestOpenAPIAnswers(t *testing.T) {
	schemas := Document()["components"].(object)["schemas"].(object)
	for name, v := range map[string]any{"Node": nodeAnswer(), "Status": statusAnswer(), "Disks": disksAnswer(), "NodeDisk": disksAnswer().Disks[0]} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		s := schemas[name].(object)
		for _, k := range s["required"].([]string) {
			if _, ok := got[k]; !ok {
				t.Errorf("%s requires %s, and an answer has none", name, k)
			}
		}
		for k := range got {
			if _, ok := s["properties"].(object)[k]; !ok {
				t.Errorf("an answer of %s has %s, of which the document knows nothing", name, k)
			}
		}
	}
}

// Every call ends: by its limit, or, where it streams, when the caller goes.
func TestBounded(t *testing.T) {
	for key, c := range contracts() {
		r, cancel := c.bounded(&http.Request{})
		if _, ok := r.Context().Deadline(); ok == c.stream {
			t.Errorf("%s: a deadline is set: %t, it streams: %t", key, ok, c.stream)
		}
		cancel()
	}
}

func nodeAnswer() any   { return hostapi.Node{} }
func statusAnswer() any { return hostapi.Status{Resources: []hostapi.ResourceStatus{}} }

func disksAnswer() hostapi.Disks {
	return hostapi.Disks{Disks: []hostapi.NodeDisk{{Survey: blockdev.Survey{Disk: blockdev.Disk{Name: "vda", Path: "/dev/vda"}}, Reasons: []hostapi.DiskReason{}}}}
}
