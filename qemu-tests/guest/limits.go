package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// eat holds memory that is really used.
func eat(bytes string) error {
	n, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	held := make([]byte, n)
	for i := 0; i < n; i += 4096 {
		held[i] = 1
	}
	fmt.Println("holds", len(held))
	for {
		time.Sleep(time.Hour)
	}
}

// spin computes and says how much of a CPU it was given.
func spin() error {
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			return 0
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	for {
		start, before := time.Now(), used()
		for time.Since(start) < time.Second {
		}
		fmt.Printf("cpus %.3f\n", (used()-before).Seconds()/time.Since(start).Seconds())
	}
}

// fork starts children until it may not.
func fork(n string) error {
	most, err := strconv.Atoi(n)
	if err != nil {
		return err
	}
	got := 0
	for ; got < most; got++ {
		cmd := exec.Command("/proc/self/exe", "stay")
		if err = cmd.Start(); err != nil {
			break
		}
	}
	fmt.Println("forked", got, err)
	for {
		time.Sleep(time.Hour)
	}
}

// self prints what the kernel says of this process and of its program (FS_IOC_MEASURE_VERITY, fs-verity documentation).
func self() error {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return err
	}
	fmt.Println("oom_score_adj", strings.TrimSpace(string(b)))
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer f.Close()
	digest := struct {
		algorithm, size uint16
		digest          [64]byte
	}{size: 64}
	const measure = 0xc0046686 // _IOWR('f', 134, struct fsverity_digest)
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), measure, uintptr(unsafe.Pointer(&digest))); e != 0 {
		fmt.Println("fs-verity", e)
	} else {
		fmt.Println("fs-verity", hex.EncodeToString(digest.digest[:digest.size]))
	}
	if w, err := os.OpenFile("/app/bin/guest", os.O_WRONLY, 0); err == nil {
		w.Close()
		fmt.Println("the program can be written")
	}
	for {
		time.Sleep(time.Hour)
	}
}
