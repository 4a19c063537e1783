package main

import (
	"bytes"
	"strings"
	"testing"

	"kingpost/internal/mesh/verbs"
)

func TestPushedSaysWhatHappened(t *testing.T) {
	for name, c := range map[string]struct {
		res  verbs.PushResult
		want string
	}{
		"nothing":        {verbs.PushResult{Module: "web", Version: 3, Same: true}, "the module web is there already, as version 3: nothing changed"},
		"only a version": {verbs.PushResult{Module: "web", Version: 3, Declared: true}, "nothing changes"},
		"held":           {verbs.PushResult{Module: "web", Version: 3, Reason: "held until `declare`, as asked"}, "is stored as version 3: held"},
		"a change":       {verbs.PushResult{Module: "web", Version: 3, Declared: true, Changes: []verbs.Change{{Node: "a", Key: "web/x", Action: "add"}}}, "web/x"},
	} {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := pushed(&b, &c.res); err != nil || !strings.Contains(b.String(), c.want) {
				t.Errorf("%q, %v", b.String(), err)
			}
		})
	}
}
