package release

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"

	"kingpost/internal/mesh"
	"kingpost/internal/strictyaml"
)

// ParseNodeConfig reads node.yaml strictly: an unknown or repeated key, or a value that cannot be, is an error
// with its line and column. Empty data is the zero NodeConfig.
func ParseNodeConfig(data []byte) (mesh.NodeConfig, error) {
	c, err := parseNodeConfig(data)
	if err != nil {
		return mesh.NodeConfig{}, fmt.Errorf("node.yaml: %w", err)
	}
	return c, nil
}

func parseNodeConfig(data []byte) (c mesh.NodeConfig, err error) {
	if len(data) > mesh.MaxNodeConfig {
		return c, fmt.Errorf("it has %d bytes, at most %d are read", len(data), mesh.MaxNodeConfig)
	}
	if err := strictyaml.Unmarshal(data, &c, strictyaml.EmptyIsAbsent); err != nil {
		return c, err
	}
	for _, check := range []struct {
		path string
		err  error
	}{
		{"$.hostname", checkHostname(c.Hostname)},
		{"$.claim", checkClaim(c.Claim)},
		{"$.install", checkInstall(c.Install)},
		{"$.install.then", checkThen(c.Install)},
		{"$.install.disk.path", checkDisk(c.Install, checkDiskPath)},
		{"$.install.disk.size", checkDisk(c.Install, checkDiskSize)},
		{"$.install.disk.bus", checkDisk(c.Install, checkDiskBus)},
		{"$.mesh.raise", checkRaise(c.Mesh)},
		{"$.mesh", checkMesh(c.Mesh)},
		{"$.mesh.join", checkJoin(c.Mesh.Join)},
	} {
		if check.err != nil {
			return c, place(data, check.path, check.err)
		}
	}
	if f := checkNetwork(c.Network); f != nil {
		return c, place(data, f.path, f.err)
	}
	return c, nil
}

func checkHostname(s string) error {
	if s == "" {
		return nil
	}
	return mesh.CheckName(s)
}

func checkClaim(s string) error {
	if s == "" {
		return nil
	}
	_, err := ParseClaim(s)
	return err
}

func checkRaise(m mesh.MeshConfig) error {
	if m.Raise == "" {
		return nil
	}
	return mesh.CheckName(m.Raise)
}

func checkMesh(m mesh.MeshConfig) error {
	if m.Raise != "" && m.Join != nil {
		return fmt.Errorf("raise and join exclude each other; keep the one that this node is to do")
	}
	return nil
}

// maxToken bounds a join token, in bytes.
const maxToken = 4096

func checkJoin(j *mesh.JoinConfig) error {
	switch {
	case j == nil:
		return nil
	case j.Token == "":
		return fmt.Errorf("the token is missing")
	case len(j.Token) > maxToken || strings.ContainsFunc(j.Token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("this is no token; paste it whole and in one line") // the token itself is a secret
	}
	return nil
}

// place is err with where in data the value at path is.
func place(data []byte, path string, err error) error {
	return fmt.Errorf("%s%s: %w", position(data, path), strings.TrimPrefix(path, "$."), err)
}

// position says where in data the value at path is: "[3:8] ", as the YAML decoder's own errors do.
func position(data []byte, path string) string {
	p, err := yaml.PathString(path)
	if err != nil {
		return ""
	}
	f, err := parser.ParseBytes(data, 0)
	if err != nil {
		return ""
	}
	n, err := p.FilterFile(f)
	if err != nil || n == nil || n.GetToken() == nil {
		return ""
	}
	at := n.GetToken().Position
	return fmt.Sprintf("[%d:%d] ", at.Line, at.Column)
}

// claimPrefix is the one kind of key that a claim can be.
const claimPrefix = "ed25519:"

// ParseClaim reads a claim key, "ed25519:" and the base64 of its PKIX form (RFC 8410).
func ParseClaim(s string) (ed25519.PublicKey, error) {
	b64, ok := strings.CutPrefix(s, claimPrefix)
	if !ok {
		return nil, fmt.Errorf("a claim key starts with %s; the operator's is shown by `kingpost claim`", claimPrefix)
	}
	der, err := base64.StdEncoding.Strict().DecodeString(b64)
	if err != nil {
		return nil, fmt.Errorf("the claim key is no base64: %w", err)
	}
	k, err := x509.ParsePKIXPublicKey(der)
	if err != nil {
		return nil, fmt.Errorf("the claim key is no public key in PKIX form: %w", err)
	}
	pub, ok := k.(ed25519.PublicKey)
	if !ok {
		return nil, fmt.Errorf("the claim key is a %T, not an Ed25519 key", k)
	}
	return pub, nil
}

// FormatClaim is the claim form of a public key.
func FormatClaim(k ed25519.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return "", fmt.Errorf("claim key: %w", err)
	}
	return claimPrefix + base64.StdEncoding.EncodeToString(der), nil
}
