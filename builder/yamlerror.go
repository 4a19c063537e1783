package builder

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
)

// explainYAML says an error of the YAML decoder in the words of somebody who writes a recipe: name, line and column,
// what is wrong there, and the lines around it.
func explainYAML(name string, err error) error {
	var at yaml.Error
	if !errors.As(err, &at) {
		return fmt.Errorf("%s: %w", name, err)
	}
	where, text := name, strings.TrimSpace(yaml.FormatError(at, false, true))
	if t := at.GetToken(); t != nil && t.Position != nil {
		where = fmt.Sprintf("%s:%d:%d", name, t.Position.Line, t.Position.Column)
		text = strings.TrimPrefix(text, fmt.Sprintf("[%d:%d] ", t.Position.Line, t.Position.Column))
	}
	return fmt.Errorf("%s: %s", where, text)
}
