package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	bolt "go.etcd.io/bbolt"

	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
)

// Host is what the controller asks of the node that it runs on; *hostapi.Client is one.
type Host interface {
	mesh.Caller
	// Node is who the node is.
	Node(ctx context.Context) (*hostapi.Node, error)
	// Status is declared beside observed.
	Status(ctx context.Context) (*hostapi.Status, error)
	// Declare gives the node's host its declaration. It returns when that is on disk; the same version
	// again is no error. A version that is too low is a *hostapi.Error with mesh.CodeConflict.
	Declare(ctx context.Context, d *mesh.Declaration) error
}

// Options says which controller this is.
type Options struct {
	Dir     string // the state folder
	Mesh    string
	Node    string // the control-node, on which this runs
	Arch    string // of the control-node, Go's name
	Epoch   uint64 // the term that the host gave to this start
	Program string // identifies the running program; a new one makes a snapshot of the state first
	// CA is the file with the mesh CA's certificate (PEM), for tokens; empty: no tokens can be made.
	CA   string
	Host Host
	Now  func() time.Time
	Log  logrus.FieldLogger
	// LookAgain is how often is looked whether hosts still have what they took; 0 is a minute.
	LookAgain time.Duration
}

// Controller is an open controller. Close it.
type Controller struct {
	opt Options
	db  *database

	ctx      context.Context // of the couriers
	stop     context.CancelFunc
	wait     sync.WaitGroup
	mu       sync.Mutex // guards couriers
	couriers map[string]*courier
}

// Open opens the state for its term and, where something was declared already, declares it anew in this
// term. It fails with a *FencedError when a later term has opened the state.
func Open(opt Options) (*Controller, error) {
	for what, name := range map[string]string{"mesh": opt.Mesh, "node": opt.Node} {
		if err := mesh.CheckName(name); err != nil {
			return nil, fmt.Errorf("the %s's name: %w; the host sets it", what, err)
		}
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.LookAgain == 0 {
		opt.LookAgain = lookAgain
	}
	if opt.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		opt.Log = l
	}
	db, err := openDatabase(opt.Dir, opt.Mesh, opt.Node, opt.Program, opt.Epoch, opt.Now())
	if err != nil {
		return nil, err
	}
	c := &Controller{opt: opt, db: db, couriers: map[string]*courier{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.begin(); err != nil {
		return nil, errors.Join(fmt.Errorf("begin epoch %d: %w", opt.Epoch, err), c.Close())
	}
	return c, nil
}

// begin registers the control-node and gives every node's declaration this term's version: hosts refuse
// what the terms before may still say.
func (c *Controller) begin() error {
	var nodes []string
	err := c.db.update(func(t *txn) error {
		self := nodeRecord{Name: c.opt.Node, Arch: c.opt.Arch, Control: true}
		if old, ok, err := get[nodeRecord](t, bucketNodes, self.Name); err != nil || !ok || old != self {
			if err != nil {
				return err
			}
			t.meta.Revision++
			if err := t.put(bucketNodes, self.Name, self); err != nil {
				return err
			}
		}
		if !t.meta.Declaring {
			return nil
		}
		var old []mesh.Declaration
		if err := each(t, bucketDeclared, func(_ string, d mesh.Declaration) error { old = append(old, d); return nil }); err != nil {
			return err
		}
		for _, d := range old {
			nodes = append(nodes, d.Node)
			if d.Epoch == c.opt.Epoch {
				continue // the same term was opened again
			}
			d.Version = mesh.Version{Epoch: c.opt.Epoch, Revision: 1}
			if err := t.put(bucketDeclared, d.Node, d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.deliver(nodes)
	return nil
}

// Close stops delivering and closes the state. What was not delivered is on disk, and is by the next term.
func (c *Controller) Close() error {
	c.stop()
	c.wait.Wait()
	return c.db.close()
}

// Fenced is closed when a write found that a later term has the state; the controller must end then.
func (c *Controller) Fenced() <-chan struct{} { return c.db.fenced }

// Check opens the state for reading.
func (c *Controller) Check(context.Context) error { return c.db.check() }

// Epoch is the term of this controller.
func (c *Controller) Epoch() uint64 { return c.opt.Epoch }

// world reads the wanted state.
func (t *txn) world() (*world, error) {
	w := &world{mesh: t.meta.Mesh, control: t.meta.Control, nodes: map[string]nodeRecord{}}
	err := each(t, bucketNodes, func(name string, n nodeRecord) error { w.nodes[name] = n; return nil })
	if err != nil {
		return nil, err
	}
	err = each(t, bucketModules, func(_ string, r moduleRecord) error {
		m := module{moduleRecord: r}
		var err error
		if m.latest, err = t.version(r.Name, r.Latest); err != nil {
			return err
		}
		m.current = m.latest
		if r.Current != r.Latest {
			m.current, err = t.version(r.Name, r.Current)
		}
		w.modules = append(w.modules, m)
		return err
	})
	return w, err
}

// version reads one version of a module's history; nil for number 0.
func (t *txn) version(name string, n uint64) (*moduleVersion, error) {
	if n == 0 {
		return nil, nil
	}
	if h := t.tx.Bucket(bucketHistory).Bucket([]byte(name)); h != nil {
		if data := h.Get(number(n)); data != nil {
			v := new(moduleVersion)
			if err := unmarshal(data, v); err != nil {
				return nil, fmt.Errorf("version %d of module %s is damaged: %w", n, name, err)
			}
			return v, nil
		}
	}
	return nil, fmt.Errorf("version %d of module %s is missing from the history", n, name)
}

// history reads all versions of a module that are kept, newest first.
func (t *txn) history(name string) ([]*moduleVersion, error) {
	h := t.tx.Bucket(bucketHistory).Bucket([]byte(name))
	if h == nil {
		return nil, nil
	}
	var vs []*moduleVersion
	err := h.ForEach(func(_, data []byte) error {
		v := new(moduleVersion)
		vs = append(vs, v)
		return unmarshal(data, v)
	})
	slices.Reverse(vs)
	return vs, err
}

// keepVersions bounds a module's history.
const keepVersions = 16

// store appends v to the history of m and makes it the latest; v.Number is set. Versions beyond
// keepVersions go, but never the current one.
func (t *txn) store(m *module, v *moduleVersion) error {
	h, err := t.tx.Bucket(bucketHistory).CreateBucketIfNotExists([]byte(m.Name))
	if err != nil {
		return err
	}
	n, err := h.NextSequence()
	if err != nil {
		return err
	}
	v.Number = n
	if err := put(h, number(n), v); err != nil {
		return err
	}
	m.Latest, m.latest = n, v
	var keys [][]byte
	if err := h.ForEach(func(k, _ []byte) error { keys = append(keys, slices.Clone(k)); return nil }); err != nil {
		return err
	}
	return trimHistory(h, keys, m.Current)
}

func trimHistory(h *bolt.Bucket, keys [][]byte, current uint64) error {
	for i := 0; i < len(keys)-keepVersions; i++ {
		if string(keys[i]) == string(number(current)) {
			continue
		}
		if err := h.Delete(keys[i]); err != nil {
			return err
		}
	}
	return nil
}

// nodeNames lists the nodes, sorted.
func (w *world) nodeNames() []string {
	names := make([]string, 0, len(w.nodes))
	for n := range w.nodes {
		names = append(names, n)
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
