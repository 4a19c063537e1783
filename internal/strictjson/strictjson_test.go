package strictjson

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

type inner struct {
	Name string            `json:"name"`
	Env  map[string]string `json:"env,omitempty"`
	N    uint8             `json:"n,omitempty"`
}

type outer struct {
	inner
	List []inner         `json:"list,omitempty"`
	Raw  json.RawMessage `json:"raw,omitempty"`
	On   *bool           `json:"on,omitempty"`
	None *struct{}       `json:"none,omitempty"`
}

func TestDecode(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"whole":         {`{"name":"a","env":{"x":"y"},"list":[{"name":"b"}],"raw":{"any":[1]},"on":true}`, ""},
		"unknown":       {`{"list":[{"name":"b"},{"nome":"c"}]}`, `list[1]: unknown field "nome"`},
		"nothing known": {`{"none":{"a":1}}`, `none: unknown field "a"; there are no fields here`},
		"long key":      {`{"` + strings.Repeat("k", 150) + `":1}`, `field "` + strings.Repeat("k", 60) + `"; known`},
		"raw key":       {`{"env":{"\u001b[31m":1}}`, `env."\x1b[31m": a number stands`},
		"case":          {`{"Name":"a"}`, `"name" is meant`},
		"twice":         {`{"list":[{"name":"b","name":"c"}]}`, `list[0].name: the key stands twice`},
		"twice in map":  {`{"env":{"a":"1","a":"2"}}`, `env.a: the key stands twice`},
		"twice in raw":  {`{"raw":{"a":{"b":1,"b":2}}}`, `raw.a.b: the key stands twice`},
		"trailing":      {`{"name":"a"} {}`, `more after the JSON value`},
		"wrong type":    {`{"list":{"name":1}}`, `list: an object stands where a list belongs`},
		"number":        {`{"list":[{"n":300}]}`, `list[0].n: 300 is not`},
		"text for bool": {`{"on":"yes"}`, `on: a text stands where true or false belongs`},
		"cut":           {`{"list":[{"name":"b"}`, `ends in the middle`},
		"empty":         {``, `ends in the middle`},
		"too large":     {`{"name":"` + strings.Repeat("x", 200) + `"}`, `more than the 200 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			var v outer
			err := Decode(strings.NewReader(c.in), 200, &v)
			switch {
			case c.want == "" && err != nil:
				t.Fatal(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := Decode(strings.NewReader("[1,2,3]"), 3, new([]int)); !errors.Is(err, ErrTooLarge) {
		t.Fatal(err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"name":"a","list":[{"name":"b"}],"raw":[{}]}`))
	f.Add([]byte(`{"list":[{"n":1e2}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v outer
		if Unmarshal(b, &v) != nil {
			return
		}
		// What is accepted is accepted by encoding/json as well and survives a round.
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := Unmarshal(out, new(outer)); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	})
}

func TestDepthIsBounded(t *testing.T) {
	for name, in := range map[string]string{
		"lists":   strings.Repeat("[", 1<<20),
		"objects": strings.Repeat(`{"a":`, 1<<18),
	} {
		var v any
		if err := Unmarshal([]byte(in), &v); err == nil || !strings.Contains(err.Error(), "deeper") {
			t.Errorf("%s: got %v, want an error that says it is too deep", name, err)
		}
	}
}
