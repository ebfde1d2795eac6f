package source

import "github.com/stayput-dev/stayput/osimage"

// Parts are the contents that an importer has found in an artifact, and what it has learned of them. They are open:
// the inputs read from the artifact, or from a temporary file, until Close.
type Parts struct {
	// Name, Version, Variant and Architecture are those of osimage.Config.
	Name, Version, Variant, Architecture string
	// Scheme is the slot scheme that the artifact is made for: a SchemeXxx of osimage.
	Scheme string
	// RootHash is the dm-verity root hash, 64 lower-case hexadecimal digits, "" where the scheme has none.
	RootHash string
	// Inputs are the contents by role.
	Inputs map[osimage.Role]osimage.Input
	// Notes are for a person: what was left out, what could not be checked.
	Notes []string
	// Close releases files; nil when there is nothing to release. The inputs cannot be read any more after it.
	Close func() error
}

// Release calls Close when there is one. It is safe to call on nil and more than once.
func (p *Parts) Release() error {
	if p == nil || p.Close == nil {
		return nil
	}

	closing := p.Close
	p.Close = nil

	return closing()
}

// Spec is what osimage.Build wants to make an image of the parts.
func (p *Parts) Spec() osimage.BuildSpec {
	return osimage.BuildSpec{
		Name: p.Name, Version: p.Version, Variant: p.Variant, Architecture: p.Architecture,
		Scheme: p.Scheme, RootHash: p.RootHash, Inputs: p.Inputs,
	}
}
