package pid1

import (
	"fmt"
	"os"
	"sync"

	"github.com/sirupsen/logrus"

	"kingpost/boot/console"
)

// boundedFile is a log file that is renamed to NAME.old when it is full, so that both together hold at most twice max.
type boundedFile struct {
	path string
	max  int64 // bytes

	mu   sync.Mutex
	f    *os.File
	size int64
	// closed keeps the file system free to be unmounted.
	closed bool
}

// Write appends p. A file that cannot be written loses p and is tried again with the next one: a log never stops what is logged.
func (b *boundedFile) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.f != nil && b.size+int64(len(p)) > b.max {
		b.f.Close()
		b.f = nil
		_ = os.Rename(b.path, b.path+".old")
	}
	if b.closed {
		return len(p), nil
	}
	if b.f == nil {
		f, err := os.OpenFile(b.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return len(p), nil
		}
		b.f, b.size = f, 0
		if st, err := f.Stat(); err == nil {
			b.size = st.Size()
		}
	}
	n, _ := b.f.Write(p)
	b.size += int64(n)
	return len(p), nil
}

// Close closes the file; later writes are lost.
func (b *boundedFile) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.f != nil {
		b.f.Close()
		b.f = nil
	}
}

// initLogSize bounds PID 1's own log, which is in memory, in bytes.
const initLogSize = 128 << 10

// newLog logs everything to a bounded file and what needs a person to the console.
func newLog(c *console.Console, path string) *logrus.Logger {
	l := logrus.New()
	l.SetOutput(&boundedFile{path: path, max: initLogSize})
	l.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
	l.AddHook(consoleHook{c, []logrus.Level{logrus.PanicLevel, logrus.FatalLevel, logrus.ErrorLevel, logrus.WarnLevel}})
	return l
}

// consoleHook puts entries of some levels on the console.
type consoleHook struct {
	c      *console.Console
	levels []logrus.Level
}

func (h consoleHook) Levels() []logrus.Level { return h.levels }

func (h consoleHook) Fire(e *logrus.Entry) error {
	word := "error"
	switch e.Level {
	case logrus.WarnLevel:
		word = "warning"
	case logrus.InfoLevel:
		word = "info"
	}
	text := e.Message
	if err, ok := e.Data[logrus.ErrorKey]; ok {
		text += fmt.Sprintf(": %v", err)
	}
	h.c.Line("%s %s", word, text)
	return nil
}
