package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"kingpost/internal/host/door"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

func (s *Server) openapi(w http.ResponseWriter, _ *http.Request, _ door.Caller) error {
	return writeJSON(w, http.StatusOK, Document())
}

type object = map[string]any

// Document is the API as an OpenAPI document (OpenAPI specification 3.1.0): every endpoint but /v2/, made from the table that
// the server itself goes by, so it cannot say anything else.
func Document() map[string]any {
	g := &generator{schemas: object{}}
	paths := object{}
	cs := contracts()
	for _, e := range endpoints() {
		item, _ := paths[e.pattern].(object)
		if item == nil {
			item = object{}
			paths[e.pattern] = item
		}
		item[strings.ToLower(e.method)] = g.operation(e, cs[e.method+" "+e.pattern])
	}
	return object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Kingpost host", "version": "1",
			"description": "The API of a node's host, on its unix socket and over TLS 1.3. Fields may be added within version 1; none is removed or changes its meaning.",
		},
		"paths":      paths,
		"components": object{"schemas": g.schemas},
	}
}

type generator struct{ schemas object }

var inPath = regexp.MustCompile(`\{([a-z]+)\}`)

func (g *generator) operation(e endpoint, c contract) object {
	who, _ := describe(e.rule)
	op := object{"summary": strings.ReplaceAll(c.what, "`", ""), "description": "Roles: " + who + ".", "operationId": operationID(e)}
	var parameters []any
	for _, m := range inPath.FindAllStringSubmatch(e.pattern, -1) {
		parameters = append(parameters, object{"name": m[1], "in": "path", "required": true, "schema": object{"type": "string"}})
	}
	for _, p := range c.query {
		parameters = append(parameters, object{"name": p.name, "in": "query", "description": p.what, "schema": object{"type": p.kind}})
	}
	if parameters != nil {
		op["parameters"] = parameters
	}
	if c.body != nil {
		op["requestBody"] = object{"content": object{"application/json": object{"schema": g.schema(c.body)}}}
	}
	answer := object{"schema": object{"type": "object"}}
	if c.answer != nil {
		answer = object{"schema": g.schema(c.answer)}
	} else if c.content != "" {
		answer = object{"schema": object{"type": "string"}}
	}
	content := object{}
	if c.content != "text/plain" {
		content["application/json"] = answer
	}
	if c.content != "" {
		content[c.content] = answer
	}
	responses := object{"default": object{
		"description": "refused or failed", "content": object{"application/json": object{"schema": g.schema(reflect.TypeFor[hostapi.Error]())}},
	}}
	for _, status := range append([]int{http.StatusOK}, c.also...) {
		responses[fmt.Sprint(status)] = object{"description": http.StatusText(status), "content": content}
	}
	op["responses"] = responses
	return op
}

func operationID(e endpoint) string {
	words := strings.FieldsFunc(strings.ToLower(e.method)+"/"+strings.TrimPrefix(e.pattern, "/v1/"), func(r rune) bool { return !('a' <= r && r <= 'z') })
	for i := range words[1:] {
		words[i+1] = strings.ToUpper(words[i+1][:1]) + words[i+1][1:]
	}
	return strings.Join(words, "")
}

// schema is the JSON schema of what encoding/json makes of a type. Structs with a name are components.
func (g *generator) schema(t reflect.Type) any {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[mesh.Duration]():
		return object{"type": "string", "examples": []string{"10s"}}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.schema(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": g.schema(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		name := t.Name()
		if _, ok := g.schemas[name]; !ok {
			g.schemas[name] = nil // a type may hold itself
			o := object{"type": "object"}
			properties, required := object{}, []string{}
			g.fields(t, properties, &required)
			o["properties"] = properties
			if len(required) > 0 {
				slices.Sort(required)
				o["required"] = required
			}
			g.schemas[name] = o
		}
		return object{"$ref": "#/components/schemas/" + name}
	}
	return object{"type": "integer"}
}

func (g *generator) fields(t reflect.Type, properties object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
			continue
		case name == "" && f.Anonymous:
			g.fields(f.Type, properties, required)
			continue
		case name == "":
			name = f.Name
		}
		properties[name] = g.schema(f.Type)
		if !strings.Contains(options, "omit") {
			*required = append(*required, name)
		}
	}
}

// describe says for people who may use an endpoint, and what the claim key may before there is a mesh.
func describe(r door.Rule) (who, claim string) {
	if r.Open {
		return "everybody", "always"
	}
	var names []string
	for _, role := range r.Roles {
		name := string(role)
		if role == mesh.RoleComponent && len(r.Modules) > 0 {
			name += " " + strings.Join(r.Modules, " ")
		}
		names = append(names, name)
	}
	switch {
	case !r.Claim:
		claim = "never"
	case !r.Returning:
		claim = "before the raise"
	default:
		claim = "always"
	}
	return strings.Join(names, ", "), claim
}
