// demo is the workload of the supervisor's tests: a bundle's program and an image's.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		os.Exit(2)
	}
	switch os.Args[1] {
	case "serve", "sick":
		serve(os.Args[1] == "serve")
	case "exit":
		n, _ := strconv.Atoi(os.Args[2])
		fmt.Println("exits with", n)
		os.Exit(n)
	case "stubborn":
		// Ignores SIGTERM, and has a child that does too.
		signal.Ignore(syscall.SIGTERM)
		if len(os.Args) < 3 {
			_ = exec.Command(os.Args[0], "stubborn", "child").Start()
			fmt.Println("stubborn")
		}
		for { // not select: a program that can never go on again is ended by Go's runtime
			time.Sleep(time.Hour)
		}
	case "flood":
		line := strings.Repeat("x", 120)
		for i := 0; ; i++ {
			fmt.Println(i, line)
		}
	case "look":
		look()
	case "daemons":
		// Each leaves the session of who started it, and has no parent any more.
		for i := range 3 {
			c := exec.Command(os.Args[0], "stubborn", "child")
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			check(c.Start())
			fmt.Println("daemon", i, "of", os.Getpid())
		}
		select {}
	case "leave":
		// The child keeps the log open.
		c := exec.Command(os.Args[0], "stubborn", "child")
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		check(c.Start())
		fmt.Println("leaves", c.Process.Pid)
		n, _ := strconv.Atoi(os.Args[2])
		os.Exit(n)
	case "fill":
		fill(os.Args[2])
	case "uid":
		fmt.Println(os.Getuid(), os.Geteuid())
	case "try":
		try()
	case "net":
		network()
	case "idle":
		time.Sleep(time.Duration(1 << 62))
	case "now":
		fmt.Println("now", time.Now().UnixNano())
		time.Sleep(time.Hour)
	case "write-bytes":
		n, err := strconv.Atoi(os.Args[2])
		check(err)
		line := []byte(strings.Repeat(strings.Repeat("x", 127)+"\n", 256))
		start := time.Now()
		for ; n > 0; n -= len(line) {
			_, err := os.Stdout.Write(line)
			check(err)
		}
		fmt.Println("took", time.Since(start).Seconds())
	case "x32":
		// A system call of amd64's second, 32-bit kind, by a child: the filter ends who makes it.
		child, _, _ := syscall.RawSyscall(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0)
		if child == 0 {
			syscall.RawSyscall(1<<30|39, 0, 0, 0)
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		var st syscall.WaitStatus
		_, err := syscall.Wait4(int(child), &st, 0, nil)
		check(err)
		fmt.Println("x32:", st.Signal())
	case "has":
		_, err := os.Stat(os.Args[2])
		check(err)
	case "write":
		check(os.WriteFile(os.Args[2], []byte("mine"), 0o600))
		fmt.Println("written")
		time.Sleep(time.Hour)
	case "daemon":
		// Ends, and leaves a child of another session that holds its output.
		cmd := exec.Command(os.Args[0], "stubborn", "child")
		cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, &syscall.SysProcAttr{Setsid: true}
		check(cmd.Start())
		fmt.Println("child", cmd.Process.Pid)
	case "tcp":
		addr := ":8080"
		if len(os.Args) > 2 {
			addr = os.Args[2]
		}
		l, err := net.Listen("tcp", addr)
		check(err)
		fmt.Println("listening")
		for {
			c, err := l.Accept()
			check(err)
			fmt.Fprintln(c, "hello from inside")
			c.Close()
		}
	}
}

// fill writes to a file until that fails, and says how far it came.
func fill(path string) {
	f, err := os.Create(path)
	check(err)
	block, size := make([]byte, 64<<10), 0
	for err == nil && size < 64<<20 {
		var n int
		n, err = f.Write(block)
		size += n
	}
	if err == nil {
		err = f.Sync()
	}
	fmt.Println("wrote", size, "bytes:", err)
	time.Sleep(time.Hour)
}

// try tells what becomes of system calls that nobody needs who is confined, as one line of JSON, and stays.
func try() {
	out := map[string]string{}
	say := func(name string, err error) {
		out[name] = "allowed"
		if err != nil {
			out[name] = err.Error()
		}
	}
	_, err := unix.KeyctlGetKeyringID(unix.KEY_SPEC_SESSION_KEYRING, true)
	say("keyctl", err)
	say("mount", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, ""))
	say("unshare", unix.Unshare(unix.CLONE_NEWUSER))
	_, _, e := unix.Syscall(unix.SYS_BPF, 0, 0, 0)
	say("bpf", e)
	_, _, e = unix.Syscall(unix.SYS_IO_URING_SETUP, 0, 0, 0)
	say("io_uring", e)
	_, err = os.Stat("/")
	say("stat", err)
	b, err := os.ReadFile("/proc/self/status")
	check(err)
	for _, l := range strings.Split(string(b), "\n") {
		if k, v, _ := strings.Cut(l, ":"); k == "Seccomp" || k == "NoNewPrivs" {
			out[k] = strings.TrimSpace(v)
		}
	}
	f, err := os.Create("/here")
	if err == nil {
		f.Close()
	}
	say("write to the root", err)
	for _, name := range os.Args[2:] {
		b, err := exec.Command(name, "uid").CombinedOutput()
		if err != nil {
			b = append(b, err.Error()...)
		}
		out["run "+name] = strings.TrimSpace(string(b))
	}
	_ = json.NewEncoder(os.Stdout).Encode(out)
	time.Sleep(time.Hour)
}

// network greets whoever connects to port 8080 and sends back what it says, sends back datagrams, and does at port 8081
// what it is told: "dial NETWORK ADDRESS" or "lookup NAME".
func network() {
	name, _ := os.Hostname()
	l, err := net.Listen("tcp", ":8080")
	check(err)
	c, err := net.ListenPacket("udp", ":8080")
	check(err)
	orders, err := net.Listen("tcp", ":8081")
	check(err)
	fmt.Println("listening")
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(buf)
			check(err)
			_, _ = c.WriteTo(append([]byte(name+" heard "), buf[:n]...), from)
		}
	}()
	go accept(orders, func(c net.Conn) {
		line, _ := bufio.NewReader(c).ReadString('\n')
		fmt.Fprintln(c, obey(strings.Fields(line)))
	})
	accept(l, func(c net.Conn) {
		fmt.Fprintf(c, "%s greets %s\n", name, c.RemoteAddr())
		_, _ = io.Copy(c, c)
	})
}

func accept(l net.Listener, serve func(net.Conn)) {
	for {
		c, err := l.Accept()
		check(err)
		go func() {
			defer c.Close()
			serve(c)
		}()
	}
}

func obey(words []string) string {
	if len(words) == 2 && words[0] == "lookup" {
		addrs, err := net.LookupHost(words[1])
		if err != nil {
			return "error: " + err.Error()
		}
		sort.Strings(addrs)
		return strings.Join(addrs, " ")
	}
	if len(words) != 3 || words[0] != "dial" {
		return "error: what?"
	}
	c, err := net.DialTimeout(words[1], words[2], 2*time.Second)
	if err != nil {
		return "error: " + err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	if strings.HasPrefix(words[1], "udp") {
		fmt.Fprint(c, "hello")
	}
	buf := make([]byte, 1500)
	n, err := c.Read(buf)
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(string(buf[:n]))
}

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func serve(well bool) {
	fmt.Println("serving, epoch", os.Getenv("KINGPOST_EPOCH"), "greeting", os.Getenv("GREETING"))
	if len(os.Args) > 3 && os.Args[2] == "after" {
		d, err := time.ParseDuration(os.Args[3])
		check(err)
		time.Sleep(d)
	}
	l, err := net.Listen("unix", os.Getenv("KINGPOST_SEAT_SOCKET"))
	check(err)
	go func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		<-c
		fmt.Println("told to stop")
		os.Exit(0)
	}()
	check(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !well {
			http.Error(w, "sick", 500)
			return
		}
		fmt.Fprintln(w, `{"result":{}}`)
	})))
}

// look tells what it can see and do, as one line of JSON, and stays.
func look() {
	status, _ := os.ReadFile("/proc/self/status")
	out := map[string]any{"uid": os.Getuid(), "gid": os.Getgid(), "env": os.Environ(), "pid": os.Getpid(), "ppid": os.Getppid()}
	for _, l := range strings.Split(string(status), "\n") {
		k, v, _ := strings.Cut(l, ":")
		if strings.HasPrefix(k, "Cap") || k == "NoNewPrivs" || k == "Groups" {
			out[k] = strings.TrimSpace(v)
		}
	}
	for _, f := range os.Args[2:] {
		if b, err := os.ReadFile(f); err == nil {
			out["read "+f] = string(b)
		} else {
			out["read "+f] = err.Error()
		}
	}
	canWrite := map[string]bool{}
	for _, d := range []string{"/", "/usr", "/etc", "/app", "/tmp", "/data", "/run/kingpost/identity", "/run/kingpost/seat"} {
		f, err := os.CreateTemp(d, "x")
		if err == nil {
			f.Close()
			os.Remove(f.Name())
		}
		canWrite[d] = err == nil
	}
	out["write"] = canWrite
	others := 0
	es, _ := os.ReadDir("/proc")
	for _, e := range es {
		if n, err := strconv.Atoi(e.Name()); err == nil && n != os.Getpid() {
			others++
		}
	}
	out["others"] = others
	_ = json.NewEncoder(os.Stdout).Encode(out)
	time.Sleep(time.Hour)
}
