package stub

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"golang.org/x/sys/unix"
)

// View is what a process sees of the file system: a root of its own in memory, read-only, with the
// node's programs and libraries, its bundle at /app, and what it declared.
type View struct {
	Root    string            `json:"root"` // an empty folder of the host's, to build it on
	App     string            `json:"app"`  // the bundle's files
	Account string            `json:"account"`
	Binds   []Bind            `json:"binds,omitempty"`
	Etc     map[string]string `json:"etc,omitempty"` // texts of files in /etc
}

// Bind puts a file or folder of the host's at a path of the view.
type Bind struct {
	From     string `json:"from"`
	To       string `json:"to"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// The node's own folders that a process may read, as far as they are there.
var systemFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}

var deviceNodes = []string{"null", "zero", "full", "random", "urandom", "tty"}

// enter builds the view in a mount namespace of its own and makes it the root.
func (v *View) enter(uid int) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	root := v.Root
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=4m"); err != nil {
		return fmt.Errorf("mount the view's root: %w", err)
	}
	for _, d := range systemFolders {
		if err := v.system(root, d); err != nil {
			return err
		}
	}
	if err := v.etc(root, uid); err != nil {
		return err
	}
	if err := v.devices(root); err != nil {
		return err
	}
	for _, d := range []string{"proc", "tmp", "var/tmp", "run", "app"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			return err
		}
	}
	// Other accounts' processes cannot be seen, so neither can their command lines or environments.
	if err := unix.Mount("proc", root+"/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=2"); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, d := range []string{"/tmp", "/var/tmp"} {
		if err := unix.Mount("tmpfs", root+d, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=50%"); err != nil {
			return fmt.Errorf("mount %s: %w", d, err)
		}
	}
	if err := bindMount(v.App, root+"/app", true); err != nil {
		return err
	}
	// A mount inside another comes after it. A volume's content is its account's, links included, so its
	// mount points are looked up without leaving the view.
	in, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer in.Close()
	binds := append([]Bind(nil), v.Binds...)
	sort.SliceStable(binds, func(i, j int) bool { return binds[i].To < binds[j].To })
	for _, b := range binds {
		if err := b.mount(in); err != nil {
			return fmt.Errorf("mount %s at %s: %w", b.From, b.To, err)
		}
	}
	if err := unix.Mount("", root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make the view's root read-only: %w", err)
	}
	return pivot(root)
}

// pivot makes root the root; the old one is hidden below it for a moment and then gone (pivot_root(2), "pivot_root(".", ".")").
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the old root: %w", err)
	}
	return unix.Chdir("/")
}

// system brings in one of the node's folders, or the link that stands for it on a merged /usr.
func (v *View) system(root, dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		to, err := os.Readlink(dir)
		if err != nil {
			return err
		}
		return os.Symlink(to, root+dir)
	}
	if err := os.Mkdir(root+dir, 0o755); err != nil {
		return err
	}
	return bindMount(dir, root+dir, true)
}

// etc is small and the view's own: the node's is read-only, and files may be declared into it.
func (v *View) etc(root string, uid int) error {
	dir := root + "/etc"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	texts := map[string]string{
		"passwd": fmt.Sprintf("root:x:0:0::/:/usr/sbin/nologin\n%s:x:%d:%d::/tmp:/usr/sbin/nologin\n", v.Account, uid, uid),
		"group":  fmt.Sprintf("root:x:0:\n%s:x:%d:\n", v.Account, uid),
	}
	for _, name := range []string{"os-release", "hosts", "hostname", "nsswitch.conf", "localtime", "protocols", "services", "ld.so.cache", "ld.so.conf"} {
		if b, err := os.ReadFile("/etc/" + name); err == nil && len(b) < 1<<20 {
			texts[name] = string(b)
		}
	}
	for k, t := range v.Etc {
		texts[k] = t
	}
	for name, t := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(t), 0o644); err != nil {
			return err
		}
	}
	if b, err := os.ReadFile("/etc/resolv.conf"); err == nil {
		if err := os.WriteFile(dir+"/resolv.conf", b, 0o644); err != nil {
			return err
		}
	}
	if st, err := os.Stat("/etc/ssl"); err == nil && st.IsDir() {
		if err := os.Mkdir(dir+"/ssl", 0o755); err != nil {
			return err
		}
		return bindMount("/etc/ssl", dir+"/ssl", true)
	}
	return nil
}

func (v *View) devices(root string) error {
	dev := root + "/dev"
	if err := os.Mkdir(dev, 0o755); err != nil {
		return err
	}
	for _, n := range deviceNodes {
		if err := os.WriteFile(dev+"/"+n, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+n, dev+"/"+n, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bring in /dev/%s: %w", n, err)
		}
	}
	if err := os.Mkdir(dev+"/shm", 0o755); err != nil {
		return err
	}
	if err := unix.Mount("shm", dev+"/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=64m"); err != nil {
		return fmt.Errorf("mount /dev/shm: %w", err)
	}
	for name, to := range map[string]string{"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"} {
		if err := os.Symlink(to, dev+"/"+name); err != nil {
			return err
		}
	}
	return nil
}

// mount makes what b needs to be mounted on, a folder or an empty file, and mounts it.
func (b Bind) mount(in *os.Root) error {
	st, err := os.Stat(b.From)
	if err != nil {
		return err
	}
	to := strings.TrimPrefix(b.To, "/")
	if _, err := in.Stat(to); errors.Is(err, fs.ErrNotExist) {
		if st.IsDir() {
			err = in.MkdirAll(to, 0o755)
		} else if err = in.MkdirAll(filepath.Dir(to), 0o755); err == nil {
			var f *os.File
			if f, err = in.Create(to); err == nil {
				f.Close()
			}
		}
		if err != nil {
			return err
		}
	}
	f, err := in.Open(to)
	if err != nil {
		return err
	}
	defer f.Close()
	return bindAt(b.From, int(f.Fd()), b.ReadOnly)
}

// bindMount binds from at to, a path that nobody else controls.
func bindMount(from, to string, readOnly bool) error {
	f, err := os.Open(to)
	if err == nil {
		defer f.Close()
		err = bindAt(from, int(f.Fd()), readOnly)
	}
	if err != nil {
		return fmt.Errorf("mount %s: %w", from, err)
	}
	return nil
}

// bindAt binds from over the open file or folder to. Nothing that is brought in carries setuid bits or
// devices; the attributes are set before the tree is attached (mount_setattr(2)), so there is no moment without.
func bindAt(from string, to int, readOnly bool) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}
