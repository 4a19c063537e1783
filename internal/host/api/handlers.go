package api

import (
	"errors"
	"io"
	"net/http"

	"kingpost/internal/host/door"
	"kingpost/internal/host/route"
	"kingpost/internal/mesh"
	"kingpost/internal/mesh/hostapi"
	"kingpost/internal/strictjson"
)

// Bounds of bodies, in bytes.
const (
	maxDeclaration = 32 << 20
	maxRaise       = 32 << 20
	maxSmall       = 4 << 10
)

func (s *Server) ping(w http.ResponseWriter, _ *http.Request, _ door.Caller) error {
	return writeJSON(w, http.StatusOK, struct{}{})
}

func (s *Server) node(w http.ResponseWriter, _ *http.Request, _ door.Caller) error {
	return writeJSON(w, http.StatusOK, s.cfg.Node())
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request, _ door.Caller) error {
	st := s.cfg.Supervisor.Status()
	if st.Resources == nil {
		st.Resources = []hostapi.ResourceStatus{}
	}
	return writeJSON(w, http.StatusOK, st)
}

func (s *Server) getDeclaration(w http.ResponseWriter, _ *http.Request, _ door.Caller) error {
	d, ok := s.cfg.Supervisor.Declaration()
	if !ok {
		return refusal(http.StatusNotFound, mesh.CodeNotFound, "nothing is declared on this node yet")
	}
	return writeJSON(w, http.StatusOK, d)
}

func (s *Server) putDeclaration(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	d, err := mesh.DecodeDeclaration(body(w, r, maxDeclaration))
	if err != nil {
		return badBody(err, "the declaration")
	}
	if err := s.cfg.Supervisor.Declare(r.Context(), d); err != nil {
		return err
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("epoch", d.Epoch).WithField("revision", d.Revision).Info("api: declaration taken")
	return writeJSON(w, http.StatusOK, struct{}{})
}

func (s *Server) call(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	if c.Mesh == "" {
		return refusal(http.StatusServiceUnavailable, mesh.CodeUnavailable, "this node is in no mesh yet, so nobody holds a seat; `kingpost raise` makes one")
	}
	var req mesh.CallRequest
	if r.ContentLength != 0 {
		if err := strictjson.Decode(body(w, r, route.MaxRequest), route.MaxRequest, &req); err != nil {
			return badBody(err, "the call")
		}
	}
	resp, err := s.cfg.Router.Route(r.Context(), c.Identity, r.PathValue("seat"), r.PathValue("verb"), req)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, resp)
}

func (s *Server) clear(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	key, err := resourceKey(r)
	if err != nil {
		return err
	}
	if err := s.cfg.Supervisor.Clear(key); err != nil {
		return err
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("resource", key).Info("api: resource cleared")
	return writeJSON(w, http.StatusOK, struct{}{})
}

func (s *Server) disks(w http.ResponseWriter, r *http.Request, _ door.Caller) error {
	d, err := s.cfg.Disks(r.Context())
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, d)
}

func (s *Server) power(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	var req hostapi.PowerRequest
	if err := strictjson.Decode(body(w, r, maxSmall), maxSmall, &req); err != nil {
		return badBody(err, "the request")
	}
	if req.Action != "reboot" && req.Action != "poweroff" {
		return refusal(http.StatusBadRequest, mesh.CodeBadParams, "action %.32q: want reboot or poweroff", req.Action)
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("action", req.Action).Warn("api: power")
	if err := s.cfg.Power(req.Action); err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, struct{}{})
}

func (s *Server) reset(w http.ResponseWriter, r *http.Request, c door.Caller) error {
	var req hostapi.ResetRequest
	if err := strictjson.Decode(body(w, r, maxSmall), maxSmall, &req); err != nil {
		return badBody(err, "the request")
	}
	if req.Name == "" {
		return refusal(http.StatusBadRequest, mesh.CodeBadParams, "name: say the name of the node that is to be wiped")
	}
	s.cfg.Log.WithField("caller", c.String()).WithField("keepClaim", req.KeepClaim).Warn("api: reset")
	if err := s.cfg.Reset(req); err != nil {
		return err
	}
	return writeJSON(w, http.StatusAccepted, struct{}{})
}

// resourceKey is "MODULE" or "MODULE/ID" from the path.
func resourceKey(r *http.Request) (string, error) {
	module, id := r.PathValue("module"), r.PathValue("id")
	if err := mesh.CheckName(module); err != nil {
		return "", refusal(http.StatusBadRequest, mesh.CodeBadParams, "module: %v", err)
	}
	if id == "" {
		return module, nil
	}
	if err := mesh.CheckName(id); err != nil {
		return "", refusal(http.StatusBadRequest, mesh.CodeBadParams, "resource: %v", err)
	}
	return module + "/" + id, nil
}

// body is a request's body, bounded; more than that closes the connection.
func body(w http.ResponseWriter, r *http.Request, most int64) io.Reader {
	return http.MaxBytesReader(w, r.Body, most)
}

// badBody tells a body that is too large from one that is wrong.
func badBody(err error, what string) error {
	var big *http.MaxBytesError
	if errors.As(err, &big) || errors.Is(err, strictjson.ErrTooLarge) {
		return refusal(http.StatusRequestEntityTooLarge, mesh.CodeBadParams, "%s is too large: %v", what, err)
	}
	return refusal(http.StatusBadRequest, mesh.CodeBadParams, "%s: %v", what, err)
}
