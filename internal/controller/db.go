package controller

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"kingpost/internal/atomicfile"
)

// Bounds of the state.
const (
	maxDatabase  = 512 << 20        // bytes; a write beyond it fails and changes nothing
	keepSnaps    = 3                // snapshots of the database that stay
	lockTimeout  = 10 * time.Second // to wait for a controller that is stopping
	schema       = 1                // of what is in the database
	databaseFile = "controller.db"
	snapshotDir  = "snapshots"
)

// FencedError tells that a later term of the controller has opened the database; this one may not write.
type FencedError struct {
	Mine, Stored uint64
}

func (e *FencedError) Error() string {
	return fmt.Sprintf("epoch %d is over: the controller's state belongs to epoch %d now, this controller must stop", e.Mine, e.Stored)
}

var (
	bucketMeta       = []byte("meta")
	bucketModules    = []byte("modules")    // name -> moduleRecord
	bucketHistory    = []byte("history")    // name -> bucket of number -> moduleVersion
	bucketNodes      = []byte("nodes")      // name -> nodeRecord
	bucketDeclared   = []byte("declared")   // node -> mesh.Declaration
	bucketTokens     = []byte("tokens")     // id -> tokenRecord
	bucketOperations = []byte("operations") // operation -> operationRecord

	keyMeta = []byte("meta")
)

// meta is what the database says of itself.
type meta struct {
	Schema   int    `json:"schema"`
	Mesh     string `json:"mesh"`
	Control  string `json:"control"`  // the control-node's name
	Epoch    uint64 `json:"epoch"`    // the highest that opened it
	Program  string `json:"program"`  // which controller opened it last
	Revision uint64 `json:"revision"` // of the mesh's wanted state; every change counts it up
	// Declaring is set by the first `declare`. Without it an empty controller would declare an empty node.
	Declaring bool `json:"declaring"`
}

// database is the bbolt file behind the fence.
type database struct {
	bolt  *bolt.DB
	epoch uint64

	once   sync.Once
	fenced chan struct{} // closed when a write found the fence
}

// openDatabase opens the database in dir for the term epoch, or makes it. It refuses with a *FencedError
// when a later term has opened it. program names the running controller: when another one opened the
// database last, a snapshot is taken before anything is written.
func openDatabase(dir, meshName, control, program string, epoch uint64, now time.Time) (*database, error) {
	if epoch == 0 {
		return nil, errors.New("a controller needs an epoch of at least 1; the host gives it to every start")
	}
	if err := os.MkdirAll(filepath.Join(dir, snapshotDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the state folder: %w", err)
	}
	path := filepath.Join(dir, databaseFile)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, MaxSize: maxDatabase, FreelistType: bolt.FreelistMapType, NoStatistics: true})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open %s: another controller has had it open for %s; it must end first", path, lockTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w; the folder %s beside it has the last %d snapshots", path, err, snapshotDir, keepSnaps)
	}
	d := &database{bolt: db, epoch: epoch, fenced: make(chan struct{})}
	if err := d.take(dir, meshName, control, program, now); err != nil {
		db.Close()
		return nil, err
	}
	return d, nil
}

// take makes the database this term's.
func (d *database) take(dir, meshName, control, program string, now time.Time) error {
	var m meta
	err := d.bolt.View(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucketMeta)
		if b == nil {
			return nil
		}
		if err := json.Unmarshal(b.Get(keyMeta), &m); err != nil {
			return fmt.Errorf("the database's own record is damaged: %w", err)
		}
		switch {
		case m.Schema > schema:
			return fmt.Errorf("the database has schema %d, this controller knows %d: start the newer controller, or restore a snapshot", m.Schema, schema)
		case m.Epoch > d.epoch:
			return &FencedError{Mine: d.epoch, Stored: m.Epoch}
		case m.Mesh != meshName:
			return fmt.Errorf("the database is of the mesh %q, this is %q; it will not be touched", m.Mesh, meshName)
		case m.Control != control:
			return fmt.Errorf("the database is of the control-node %q, this is %q; it will not be touched", m.Control, control)
		case m.Program != program:
			return snapshot(tx, filepath.Join(dir, snapshotDir), m.Epoch, now)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("open the state of the controller: %w", err)
	}
	err = d.bolt.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketModules, bucketHistory, bucketNodes, bucketDeclared, bucketTokens, bucketOperations} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		m.Schema, m.Mesh, m.Control, m.Epoch, m.Program = schema, meshName, control, d.epoch, program
		return put(tx.Bucket(bucketMeta), keyMeta, &m)
	})
	if err != nil {
		return fmt.Errorf("take the state of the controller for epoch %d: %w", d.epoch, err)
	}
	// bbolt syncs the file; its name in a new folder is ours to sync.
	return atomicfile.SyncDir(dir)
}

// snapshot copies the database as tx sees it, whole or not at all, and drops the oldest snapshots.
func snapshot(tx *bolt.Tx, dir string, epoch uint64, now time.Time) error {
	name := fmt.Sprintf("%s-epoch-%d.db", now.UTC().Format("20060102T150405"), epoch)
	tmp := filepath.Join(dir, ".new")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("snapshot before a new version opens it: %w", err)
	}
	_, err = tx.WriteTo(f)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(tmp, filepath.Join(dir, name))
	}
	if err == nil {
		err = atomicfile.SyncDir(dir)
	}
	if err != nil {
		os.Remove(tmp)
		return fmt.Errorf("snapshot before a new version opens it: %w; free some space and start it again", err)
	}
	return trimSnapshots(dir)
}

func trimSnapshots(dir string) error {
	entries, err := fs.ReadDir(os.DirFS(dir), ".") // sorted by name, so by time
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".db") {
			names = append(names, e.Name())
		}
	}
	for len(names) > keepSnaps {
		if err := os.Remove(filepath.Join(dir, names[0])); err != nil {
			return fmt.Errorf("drop an old snapshot: %w", err)
		}
		names = names[1:]
	}
	return nil
}

func (d *database) close() error { return d.bolt.Close() }

// view reads one consistent state.
func (d *database) view(fn func(tx *txn) error) error {
	return d.bolt.View(func(tx *bolt.Tx) error {
		t, err := newTxn(tx)
		if err != nil {
			return err
		}
		return fn(t)
	})
}

// update changes the state: all of it and on disk when it returns nil, else nothing. It refuses with a
// *FencedError when a later term has opened the database.
func (d *database) update(fn func(tx *txn) error) error {
	return d.bolt.Update(func(tx *bolt.Tx) error {
		t, err := newTxn(tx)
		if err != nil {
			return err
		}
		if t.meta.Epoch != d.epoch {
			d.once.Do(func() { close(d.fenced) })
			return &FencedError{Mine: d.epoch, Stored: t.meta.Epoch}
		}
		if err := fn(t); err != nil {
			return err
		}
		return put(tx.Bucket(bucketMeta), keyMeta, &t.meta)
	})
}

// check opens the state for reading and looks whether it is still ours.
func (d *database) check() error {
	return d.view(func(t *txn) error {
		if t.meta.Epoch != d.epoch {
			return &FencedError{Mine: d.epoch, Stored: t.meta.Epoch}
		}
		return nil
	})
}

// txn is a transaction in the words of the controller.
type txn struct {
	tx   *bolt.Tx
	meta meta // written back at the end of an update
}

func newTxn(tx *bolt.Tx) (*txn, error) {
	t := &txn{tx: tx}
	b := tx.Bucket(bucketMeta)
	if b == nil {
		return nil, errors.New("the database has no record of itself")
	}
	if err := json.Unmarshal(b.Get(keyMeta), &t.meta); err != nil {
		return nil, fmt.Errorf("the database's own record is damaged: %w", err)
	}
	return t, nil
}

func put(b *bolt.Bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, data)
}

// get reads a record; false when there is none.
func get[T any](t *txn, bucket []byte, key string) (T, bool, error) {
	var v T
	data := t.tx.Bucket(bucket).Get([]byte(key))
	if data == nil {
		return v, false, nil
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return v, false, fmt.Errorf("the record %s/%s is damaged: %w", bucket, key, err)
	}
	return v, true, nil
}

// each reads all records of a bucket in the order of their keys.
func each[T any](t *txn, bucket []byte, fn func(key string, v T) error) error {
	return t.tx.Bucket(bucket).ForEach(func(k, data []byte) error {
		var v T
		if err := json.Unmarshal(data, &v); err != nil {
			return fmt.Errorf("the record %s/%s is damaged: %w", bucket, k, err)
		}
		return fn(string(k), v)
	})
}

func (t *txn) put(bucket []byte, key string, v any) error {
	return put(t.tx.Bucket(bucket), []byte(key), v)
}

// number is a history number as a key: big-endian, so that keys sort as numbers do.
func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
