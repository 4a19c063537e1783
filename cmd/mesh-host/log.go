package main

import (
	"io"
	"os"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"kingpost/internal/host/logfile"
)

// maxLog bounds the host's log file, in bytes; twice that is kept.
const maxLog = 4 << 20

// openLog logs everything from info on to a bounded file, and warnings to stderr, which is the console.
func openLog(o options) (*logrus.Logger, func()) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: "2006-01-02T15:04:05.000Z07:00"})
	console := logrus.WarnLevel
	if o.verbose {
		console = logrus.DebugLevel
		log.SetLevel(logrus.DebugLevel)
	}
	log.AddHook(&writerHook{out: os.Stderr, most: console, format: &logrus.TextFormatter{DisableColors: true, DisableTimestamp: !o.verbose}})
	path := filepath.Join(o.paths().State, "logs", "host.log")
	f, err := logfile.Open(path, maxLog)
	if err != nil {
		log.WithError(err).Warn("host: its log goes to the console alone")
		return log, func() {}
	}
	log.SetOutput(f)
	return log, func() { f.Close() }
}

// writerHook writes entries of a level, and of those above it, to a second place.
type writerHook struct {
	out    io.Writer
	most   logrus.Level
	format logrus.Formatter
}

func (h *writerHook) Levels() []logrus.Level { return logrus.AllLevels[:h.most+1] }

func (h *writerHook) Fire(e *logrus.Entry) error {
	b, err := h.format.Format(e)
	if err != nil {
		return err
	}
	_, err = h.out.Write(b)
	return err
}
