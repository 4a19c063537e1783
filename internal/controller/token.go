package controller

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/seat"
	"kingpost/internal/mesh/verbs"
)

// Bounds of join tokens.
const (
	defaultTTL = time.Hour
	maxTTL     = 7 * 24 * time.Hour
	maxTokens  = 64
	maxCA      = 64 << 10
)

// tokenRecord is what the controller keeps of a token: enough to know it again, not to use it.
type tokenRecord struct {
	Secret  string    `json:"secret"` // hex SHA-256 of the secret
	Node    string    `json:"node,omitempty"`
	By      string    `json:"by"`
	Expires time.Time `json:"expires"`
}

// TokenPrefix starts every join token; the base64url of a joinToken follows.
const TokenPrefix = "kingpost-join-1."

// joinToken is what a token says to the node that joins with it.
type joinToken struct {
	Mesh      string   `json:"mesh"`
	Addresses []string `json:"addresses"` // host:port of the control-node's API
	CA        string   `json:"ca"`        // "sha256:" and the hex digest of the mesh CA's certificate (DER)
	ID        string   `json:"id"`
	Secret    string   `json:"secret"` // base64url, 32 bytes; works once
}

func checkToken(p *verbs.TokenParams) error {
	if p.Node != "" {
		if err := mesh.CheckName(p.Node); err != nil {
			return fmt.Errorf("node: %w", err)
		}
	}
	if ttl := time.Duration(p.TTL); ttl > maxTTL {
		return fmt.Errorf("ttl: %s is too long, at most %s is allowed", ttl, maxTTL)
	}
	return nil
}

// Token makes a one-time token by which a node can join.
func (c *Controller) Token(ctx context.Context, by string, p *verbs.TokenParams) (*verbs.TokenResult, error) {
	if err := checkToken(p); err != nil {
		return nil, seat.Errorf(mesh.CodeBadParams, "%v", err)
	}
	ca, err := c.caHash()
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	self, err := c.opt.Host.Node(hctx)
	if err != nil {
		return nil, seat.Errorf(mesh.CodeUnavailable, "ask the host for this node's addresses: %v", err)
	}
	if len(self.Addresses) == 0 {
		return nil, seat.Errorf(mesh.CodeUnavailable, "%s has no address that another node could reach; connect its network first", c.opt.Node)
	}
	tok := joinToken{Mesh: c.opt.Mesh, CA: ca, ID: randomText(9)[:12], Secret: randomText(32)}
	for _, a := range self.Addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			a = net.JoinHostPort(a, strconv.Itoa(mesh.PortAPI))
		}
		tok.Addresses = append(tok.Addresses, a)
	}
	now := c.opt.Now().UTC()
	rec := tokenRecord{Secret: hashHex(tok.Secret), Node: p.Node, By: by, Expires: now.Add(p.TTL.Or(defaultTTL)).Truncate(time.Second)}
	if err := c.keepToken(tok.ID, rec, now); err != nil {
		return nil, err
	}
	data, err := json.Marshal(tok)
	if err != nil {
		return nil, err
	}
	return &verbs.TokenResult{Token: TokenPrefix + base64.RawURLEncoding.EncodeToString(data), ID: tok.ID, Node: p.Node, Expires: rec.Expires}, nil
}

// keepToken stores rec and drops the tokens that are over.
func (c *Controller) keepToken(id string, rec tokenRecord, now time.Time) error {
	return c.db.update(func(t *txn) error {
		var over []string
		open := 0
		err := each(t, bucketTokens, func(key string, r tokenRecord) error {
			if r.Expires.Before(now) {
				over = append(over, key)
			} else {
				open++
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, key := range over {
			if err := t.tx.Bucket(bucketTokens).Delete([]byte(key)); err != nil {
				return err
			}
		}
		if open >= maxTokens {
			return seat.Errorf(mesh.CodeConflict, "%d join tokens are open, the most there can be; wait until one is used or expires", open)
		}
		return t.put(bucketTokens, id, rec)
	})
}

// caHash is the digest of the mesh CA's certificate, by which a node that joins knows the mesh.
func (c *Controller) caHash() (string, error) {
	if c.opt.CA == "" {
		return "", seat.Errorf(mesh.CodeUnavailable, "the controller was given no identity (%s): its manifest must ask for one", mesh.EnvIdentity)
	}
	fi, err := os.Stat(c.opt.CA)
	if err == nil && fi.Size() > maxCA {
		err = errors.New("it is too large")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(c.opt.CA)
	}
	if err != nil {
		return "", fmt.Errorf("read the mesh CA: %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE" {
		return "", errors.New("the mesh CA's file holds no certificate")
	}
	sum := sha256.Sum256(block.Bytes)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

func randomText(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails since Go 1.24
	return base64.RawURLEncoding.EncodeToString(b)
}

func hashHex(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
