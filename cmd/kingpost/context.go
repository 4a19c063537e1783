package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"kingpost/internal/atomicfile"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/mesh/tlsid"
	"kingpost/internal/strictyaml"
)

// meshContext is a mesh that the operator can talk to, and by which node.
type meshContext struct {
	Name    string `yaml:"name" json:"name"`
	Mesh    string `yaml:"mesh" json:"mesh"`
	Node    string `yaml:"node" json:"node"`       // the control-node's name
	Address string `yaml:"address" json:"address"` // HOST:PORT of its API
	Key     string `yaml:"key" json:"key"`         // fingerprint of its key
}

// contextFile is contexts.yaml.
type contextFile struct {
	Current  string        `yaml:"current,omitempty"`
	Contexts []meshContext `yaml:"contexts"`
}

// config is the operator's configuration folder: contexts.yaml, the claim key, and below contexts/ the
// credentials of each context.
type config struct{ dir string }

const (
	fileContexts = "contexts.yaml"
	fileClaim    = "claim.key"
)

func openConfig() (config, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return config{}, fmt.Errorf("find the configuration folder: %w; set XDG_CONFIG_HOME", err)
	}
	return config{filepath.Join(dir, "kingpost")}, nil
}

func (c config) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

// credentials is the folder of a context's certificate, key and CA.
func (c config) credentials(name string) string { return c.path("contexts", name) }

func (c config) load() (contextFile, error) {
	var f contextFile
	b, err := readSmall(c.path(fileContexts))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read contexts: %w", err)
	}
	if err := strictyaml.Unmarshal(b, &f); err != nil {
		return f, fmt.Errorf("read contexts: %s: %w", c.path(fileContexts), err)
	}
	return f, nil
}

func (c config) save(f contextFile) error {
	slices.SortFunc(f.Contexts, func(a, b meshContext) int { return strings.Compare(a.Name, b.Name) })
	b, err := yaml.Marshal(f)
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return c.write(b, fileContexts)
}

// write writes one file below the folder, readable by its owner alone.
func (c config) write(b []byte, elem ...string) error {
	name := c.path(elem...)
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return atomicfile.Write(name, b, 0o600)
}

func (f *contextFile) find(name string) *meshContext {
	for i := range f.Contexts {
		if f.Contexts[i].Name == name {
			return &f.Contexts[i]
		}
	}
	return nil
}

// put stores a context with its credentials, the credentials first, and makes it the current one.
func (c config) put(ctx meshContext, cert, key, ca []byte) error {
	if _, err := tlsid.Parse(cert, key, ca); err != nil {
		return fmt.Errorf("the credentials for the context %s do not fit together: %w", ctx.Name, err)
	}
	for name, b := range map[string][]byte{tlsid.FileCertificate: cert, tlsid.FileKey: key, tlsid.FileCA: ca} {
		if err := c.write(b, "contexts", ctx.Name, name); err != nil {
			return err
		}
	}
	f, err := c.load()
	if err != nil {
		return err
	}
	if old := f.find(ctx.Name); old != nil {
		*old = ctx
	} else {
		f.Contexts = append(f.Contexts, ctx)
	}
	f.Current = ctx.Name
	return c.save(f)
}

// choose is the context that a command uses: the named one, else the current one.
func (c config) choose(name string) (meshContext, error) {
	f, err := c.load()
	if err != nil {
		return meshContext{}, err
	}
	if name == "" {
		name = f.Current
	}
	if name == "" {
		return meshContext{}, errors.New("there is no context yet; raise a mesh by `kingpost raise`, or choose one by `kingpost context use`")
	}
	found := f.find(name)
	if found == nil {
		return meshContext{}, fmt.Errorf("there is no context %q; there are: %s", name, f.names())
	}
	return *found, nil
}

func (f *contextFile) names() string {
	var names []string
	for _, c := range f.Contexts {
		names = append(names, c.Name)
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// dial makes a client of the node of a context, as its operator.
func (c config) dial(name string) (meshContext, *hostapi.Client, error) {
	ctx, err := c.choose(name)
	if err != nil {
		return ctx, nil, err
	}
	cred, err := tlsid.Load(c.credentials(ctx.Name))
	if err != nil {
		return ctx, nil, fmt.Errorf("context %s: %w; `kingpost raise %s --mesh %s` fetches the credentials again", ctx.Name, err, ctx.Address, ctx.Mesh)
	}
	client, err := hostapi.Dial(ctx.Address, hostapi.Options{Credentials: tlsid.Fixed(cred), Node: ctx.Node})
	return ctx, client, err
}
