package seat

import (
	"bytes"
	"encoding/json"
	"errors"

	"kingpost/internal/strictjson"
)

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
	return true, strictjson.Unmarshal(trimmed, p)
}
