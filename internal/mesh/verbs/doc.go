// Package verbs holds the parameters and results of the verbs that Kingpost's own seats answer, as types
// that a caller and a holder share. What is not named here takes no parameters.
//
// It is words only: no code that decides. A newcomer reads one file per seat, and docs/verbs.md.
package verbs

// Names of verbs beside mesh.VerbPing and mesh.VerbDescribe, which every seat answers.
const (
	// The controller's.
	Status      = "status"
	Nodes       = "nodes"
	Modules     = "modules"
	Plan        = "plan"
	Push        = "push"
	Declare     = "declare"
	ModuleMoved = "module-moved"
	Remove      = "remove"
	Token       = "token"
	// The catalogue's.
	List    = "list" // also the builder's and the vault's
	Show    = "show"
	Resolve = "resolve"
	// The builder's.
	Build = "build"
	// The vault's.
	Put  = "put"
	Get  = "get"
	Sign = "sign"
)
