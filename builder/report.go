package builder

// Reporter is told what a build is doing. Build calls it from one goroutine at a time per phase.
type Reporter interface {
	// Phase starts a phase; its Done ends it.
	Phase(name string) Phase
}

// Phase is one phase under way.
type Phase interface {
	// Progress tells how far a long phase is, in bytes; total 0 is unknown.
	Progress(done, total int64)
	// Done ends the phase. detail says in a few words what came of it.
	Done(detail string, err error)
}

// silent is the Reporter for nobody.
type silent struct{}

func (silent) Phase(string) Phase    { return silent{} }
func (silent) Progress(int64, int64) {}
func (silent) Done(string, error)    {}
