package seat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"kingpost/internal/strictjson"
)

// maxDepth bounds how deep a call may nest; the deepest, a declaration's parameters, need about ten.
const maxDepth = 64

// decode reads params into p, strictly: one JSON object, no field that p lacks, no field twice, names in
// their exact case. given is false for absent or null params, which leave p as it is.
func decode(params json.RawMessage, p any) (given bool, err error) {
	trimmed := bytes.TrimSpace(params)
	if len(trimmed) == 0 || bytes.Equal(trimmed, []byte("null")) {
		return false, nil
	}
	if trimmed[0] != '{' {
		return true, errors.New("must be a JSON object")
	}
	if err := checkDepth(trimmed); err != nil {
		return true, err
	}
	return true, strictjson.Unmarshal(trimmed, p)
}

// checkDepth refuses what nests deeper than maxDepth before a recursive reader sees it: a few megabytes of
// brackets are enough to end a Go program by its stack limit, which no recover catches.
func checkDepth(b []byte) error {
	depth, text := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case text && c == '\\':
			i++
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("nested deeper than %d", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
