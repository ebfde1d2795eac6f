package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Form is how a signature is stored.
type Form string

const (
	// FormTag is a simple-signing payload at the tag "sha256-….sig".
	FormTag Form = "tag"
	// FormBundle is a sigstore bundle in a manifest that refers to the artifact.
	FormBundle Form = "bundle"
)

// Result says what was verified, or why not.
type Result struct {
	// Mode is that of the policy; with ModeOff nothing was looked at.
	Mode     Mode `json:"mode"`
	Verified bool `json:"verified"`
	// Digest is what the signature is over: one of those that Verify was given.
	Digest string `json:"digest,omitempty"`
	Form   Form   `json:"form,omitempty"`
	// Key made the signature.
	Key *Key `json:"key,omitempty"`
	// Reason says, with ModeWarn, why the artifact would have been refused.
	Reason string `json:"reason,omitempty"`
}

// Verify looks for a signature by one of the policy's keys over one of the digests. These must be digests of the same
// thing: an index, and the manifest that was chosen from it. The caller goes on with exactly the bytes of those.
//
// With ModeRequire, all but a good signature is an *Error. With ModeWarn it is a Result that is not verified, unless the
// context ended. It reads at most MaxSignatures of each form for each digest, and none after the first that is good.
func Verify(ctx context.Context, store Store, policy Policy, digests ...string) (Result, error) {
	return verify(ctx, &search{store: store, policy: policy}, digests)
}

// VerifyForm is Verify for signatures of one form only.
func VerifyForm(ctx context.Context, store Store, policy Policy, only Form, digests ...string) (Result, error) {
	return verify(ctx, &search{store: store, policy: policy, only: only}, digests)
}

func verify(ctx context.Context, search *search, digests []string) (Result, error) {
	result := Result{Mode: search.policy.Mode()}
	if result.Mode == ModeOff {
		return result, nil
	}

	found, err := search.find(ctx, digests)

	switch refused := (*Error)(nil); {
	case err == nil:
		found.Mode = result.Mode

		return found, nil
	case result.Mode == ModeWarn && ctx.Err() == nil && errors.As(err, &refused):
		result.Reason = refused.Brief()

		return result, nil
	default:
		return result, err
	}
}

func (s *search) find(ctx context.Context, digests []string) (Result, error) {
	subject := strings.Join(digests, " or ")

	for _, text := range digests {
		digest, err := v1.NewHash(text)
		if err != nil || digest.Algorithm != "sha256" {
			return Result{}, &Error{
				Kind: ErrMalformed, Subject: fmt.Sprintf("digest %q", text), Detail: "signatures are over SHA-256 digests",
				Fix: "name the artifact by a digest sha256:…", Err: err,
			}
		}

		for _, form := range s.forms() {
			if err := form.look(ctx, digest); err != nil {
				return Result{}, unavailable(subject, err)
			}

			if s.good != nil {
				return Result{Verified: true, Digest: text, Form: form.name, Key: s.good}, nil
			}
		}
	}

	return Result{}, s.refusal(subject)
}

func unavailable(subject string, cause error) error {
	return &Error{
		Kind: ErrUnavailable, Subject: subject, Err: cause,
		Fix: "whether it is signed is not known: check the registry, then try again",
	}
}

// search looks for one good signature, and remembers those that are not.
type search struct {
	store  Store
	policy Policy
	// only is the form to look for; empty means all.
	only Form

	// good is the key of the first good signature; nothing is looked at after it.
	good    *Key
	refused []verdict
	// cut tells that there were more than MaxSignatures.
	cut bool
}

// form is one place to look for signatures of a digest. An error means that the store failed.
type form struct {
	name Form
	look func(ctx context.Context, digest v1.Hash) error
}

// forms are in the order of the requests that they cost.
func (s *search) forms() []form {
	forms := []form{{FormTag, s.lookAtTag}, {FormBundle, s.lookAtBundles}}

	return slices.DeleteFunc(forms, func(f form) bool { return s.only != "" && f.name != s.only })
}

// verdict is what a signature is worth: its key, or the reason to refuse it.
type verdict struct {
	key    *Key
	kind   error
	detail string
}

func madeBy(key Key) verdict {
	return verdict{key: &key}
}

// maxDetail bounds, in bytes, what an error quotes of a store.
const maxDetail = 256

// refused takes a detail that may have words of the store in it.
func refused(kind error, detail string) verdict {
	printable := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}

		return utf8.RuneError
	}, detail[:min(len(detail), maxDetail)])

	return verdict{kind: kind, detail: printable}
}

func (s *search) note(v verdict) {
	if v.key != nil {
		s.good = v.key
	} else {
		s.refused = append(s.refused, v)
	}
}

// manifest reads a manifest. Problems with what the store returned are told in words.
func (s *search) manifest(ctx context.Context, tagOrDigest string) (manifest Manifest, problem string, err error) {
	manifest, err = s.store.Manifest(ctx, tagOrDigest)
	isDigest := strings.Contains(tagOrDigest, ":")

	switch {
	case err != nil:
		return Manifest{}, "", err
	case len(manifest.Bytes) > MaxManifest:
		return Manifest{}, fmt.Sprintf("its manifest has %d bytes, at most %d are read", len(manifest.Bytes), MaxManifest), nil
	case isDigest && DigestOf(manifest.Bytes) != tagOrDigest:
		return Manifest{}, "its manifest has the digest " + DigestOf(manifest.Bytes) + ", want " + tagOrDigest, nil
	default:
		return manifest, "", nil
	}
}

// layersOf reads an image manifest and returns its layers of the wanted media type.
func layersOf(manifest Manifest, wanted func(types.MediaType) bool) (layers []v1.Descriptor, problem string) {
	parsed, err := v1.ParseManifest(bytes.NewReader(manifest.Bytes))
	if err != nil {
		return nil, "its manifest cannot be read: " + err.Error()
	}

	for _, layer := range parsed.Layers {
		if wanted(layer.MediaType) {
			layers = append(layers, layer)
		}
	}

	return layers, ""
}

func isNotFound(err error) bool {
	return errors.Is(err, ErrNotFound)
}
