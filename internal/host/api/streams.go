package api

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"kingpost/internal/host/door"
	"kingpost/internal/host/supervise"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/strictjson"
)

func (s *Server) raises() (Raises, error) {
	if r := s.cfg.Raises(); r != nil {
		return r, nil
	}
	return nil, refusal(http.StatusServiceUnavailable, mesh.CodeUnavailable, "the host is still starting; try again")
}

func (s *Server) startRaise(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	ra, err := s.raises()
	if err != nil {
		return err
	}
	var req hostapi.RaiseRequest
	if err := strictjson.Decode(body(w, r, maxRaise), maxRaise, &req); err != nil {
		return badBody(err, "the raise")
	}
	st, err := ra.Start(r.Context(), req)
	if err != nil {
		return err
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("mesh", req.Mesh).WithField("state", st.State).Info("api: raise")
	status := http.StatusAccepted
	if st.State == "done" {
		status = http.StatusOK
	}
	return writeJSON(w, status, st)
}

func (s *Server) getRaise(w http.ResponseWriter, r *http.Request, _ door.Caller) error {
	ra, err := s.raises()
	if err != nil {
		return err
	}
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	if !follow {
		return writeJSON(w, http.StatusOK, ra.Status())
	}
	stream(w, ra.Watch(r.Context()))
	return nil
}

// stream writes what comes, an object a line. The channel drops what a slow client did not take, so nothing is queued here.
func stream[T any](w http.ResponseWriter, from <-chan T) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	rc := http.NewResponseController(w)
	for st := range from {
		b, err := json.Marshal(st)
		if err != nil {
			return // the header is out; the stream just ends
		}
		if _, err := w.Write(append(b, '\n')); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
	}
}

func (s *Server) installs() (Installs, error) {
	if s.cfg.Installs != nil {
		return s.cfg.Installs, nil
	}
	return nil, refusal(http.StatusServiceUnavailable, mesh.CodeUnavailable, "this host does not install; ask one that runs on a node")
}

func (s *Server) startInstall(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	in, err := s.installs()
	if err != nil {
		return err
	}
	var req hostapi.InstallRequest
	if err := strictjson.Decode(body(w, r, maxSmall), maxSmall, &req); err != nil {
		return badBody(err, "the installation")
	}
	st, err := in.Start(r.Context(), req)
	if err != nil {
		return err
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("state", st.State).WithField("target", st.Target).Info("api: install")
	status := http.StatusOK
	if st.State == hostapi.InstallRunning {
		status = http.StatusAccepted
	}
	return writeJSON(w, status, st)
}

func (s *Server) getInstall(w http.ResponseWriter, r *http.Request, _ door.Caller) error {
	in, err := s.installs()
	if err != nil {
		return err
	}
	follow, err := flag(r, "follow")
	if err != nil {
		return err
	}
	if !follow {
		return writeJSON(w, http.StatusOK, in.Status())
	}
	stream(w, in.Watch(r.Context()))
	return nil
}

func (s *Server) logs(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	key, err := resourceKey(r)
	if err != nil {
		return err
	}
	// A component sees its own log; the controller, which runs the mesh, sees all.
	if m := r.PathValue("module"); c.Role == mesh.RoleComponent && c.Name != m && c.Name != mesh.SeatController {
		return refusal(http.StatusForbidden, mesh.CodeDenied, "denied: %s may read the logs of its own module, not of %s", c, m)
	}
	var o supervise.LogOptions
	if o.Follow, err = flag(r, "follow"); err != nil {
		return err
	}
	q := r.URL.Query()
	if v := q.Get("since"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			return refusal(http.StatusBadRequest, mesh.CodeBadParams, "since=%.32q: want a duration such as 10m", v)
		}
		o.Since = s.cfg.Now().Add(-d)
	}
	if v := q.Get("bytes"); v != "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n < 1 {
			return refusal(http.StatusBadRequest, mesh.CodeBadParams, "bytes=%.32q: want a whole number from 1", v)
		}
		o.Bytes = n
	}
	rd, err := s.cfg.Supervisor.Logs(r.Context(), key, o)
	if err != nil {
		return err
	}
	defer rd.Close()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	pump(w, rd)
	return nil
}

// pump copies as it comes. It reads no more than the client has taken, so a slow one holds up nobody but
// itself: the log's file is the queue, and that is bounded.
func pump(w http.ResponseWriter, r io.Reader) {
	rc := http.NewResponseController(w)
	if rc.Flush() != nil { // the header, so that a client which follows an empty log knows that it was let in
		return
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
			if rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func flag(r *http.Request, name string) (bool, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, refusal(http.StatusBadRequest, mesh.CodeBadParams, "%s=%.16q: want 1 or 0", name, v)
	}
	return b, nil
}
