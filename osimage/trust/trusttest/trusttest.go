// Package trusttest is a store of signatures in memory, for tests: one that behaves, and that can be made to lie.
package trusttest

import (
	"context"
	"encoding/json"
	"maps"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/stayput-dev/stayput/osimage/trust"
)

// Store is a repository in memory. Its fields may be changed to make it lie. It is not safe for concurrent use.
type Store struct {
	// Manifests are by digest, Tags name them, and Blobs are by digest.
	Manifests map[string]trust.Manifest
	Tags      map[string]string
	Blobs     map[string][]byte
	// Refers are the manifests with a subject, by its digest.
	Refers map[string][]v1.Descriptor
	// NoReferrers makes it a registry without the referrers API: it keeps fallback tags.
	NoReferrers bool
	// Err, when set, answers everything that is asked.
	Err error
	// Asked counts the questions.
	Asked int
}

var _ trust.Store = (*Store)(nil)

// New makes an empty store.
func New() *Store {
	return &Store{
		Manifests: map[string]trust.Manifest{}, Tags: map[string]string{}, Blobs: map[string][]byte{},
		Refers: map[string][]v1.Descriptor{},
	}
}

// Manifest finds a manifest by its tag or digest.
func (s *Store) Manifest(_ context.Context, tagOrDigest string) (trust.Manifest, error) {
	if s.Asked++; s.Err != nil {
		return trust.Manifest{}, s.Err
	}

	if digest, ok := s.Tags[tagOrDigest]; ok {
		tagOrDigest = digest
	}

	manifest, ok := s.Manifests[tagOrDigest]
	if !ok {
		return trust.Manifest{}, trust.ErrNotFound
	}

	return manifest, nil
}

// Blob finds a blob by its digest.
func (s *Store) Blob(_ context.Context, blob v1.Descriptor) ([]byte, error) {
	if s.Asked++; s.Err != nil {
		return nil, s.Err
	}

	data, ok := s.Blobs[blob.Digest.String()]
	if !ok {
		return nil, trust.ErrNotFound
	}

	return data, nil
}

// Referrers lists what has the digest as its subject.
func (s *Store) Referrers(_ context.Context, digest string) ([]v1.Descriptor, error) {
	if s.Asked++; s.Err != nil {
		return nil, s.Err
	}

	if s.NoReferrers {
		return nil, trust.ErrNotFound
	}

	return s.Refers[digest], nil
}

// Put adds a manifest and returns its descriptor.
func (s *Store) Put(tag string, data []byte, mediaType types.MediaType) v1.Descriptor {
	digest := trust.DigestOf(data)
	s.Manifests[digest] = trust.Manifest{Bytes: data, MediaType: mediaType}

	if tag != "" {
		s.Tags[tag] = digest
	}

	return v1.Descriptor{MediaType: mediaType, Digest: hash(digest), Size: int64(len(data))}
}

// PutBlob adds a blob and returns its descriptor.
func (s *Store) PutBlob(data []byte, mediaType types.MediaType) v1.Descriptor {
	digest := trust.DigestOf(data)
	s.Blobs[digest] = data

	return v1.Descriptor{MediaType: mediaType, Digest: hash(digest), Size: int64(len(data))}
}

// Apply does what an update says.
func (s *Store) Apply(tb testing.TB, update trust.Update) {
	tb.Helper()

	for _, blob := range update.Blobs {
		s.PutBlob(blob.Bytes, blob.Descriptor.MediaType)
	}

	for _, manifest := range update.Manifests {
		s.Put(manifest.Tag, manifest.Bytes, manifest.Descriptor.MediaType)

		var parsed struct {
			Subject *v1.Descriptor `json:"subject"`
		}

		Must(tb, json.Unmarshal(manifest.Bytes, &parsed))

		if parsed.Subject != nil {
			s.refer(tb, parsed.Subject.Digest.String(), manifest.Descriptor)
		}
	}
}

func (s *Store) refer(tb testing.TB, digest string, referrer v1.Descriptor) {
	tb.Helper()

	s.Refers[digest] = append(s.Refers[digest], referrer)

	if s.NoReferrers {
		s.Put(trust.ReferrersTag(digest), Marshal(tb, v1.IndexManifest{
			SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: s.Refers[digest],
		}), types.OCIImageIndex)
	}
}

// Clone copies a store, so that a test can change one.
func (s *Store) Clone() *Store {
	return &Store{
		Manifests: maps.Clone(s.Manifests), Tags: maps.Clone(s.Tags), Blobs: maps.Clone(s.Blobs), Refers: maps.Clone(s.Refers),
		NoReferrers: s.NoReferrers, Err: s.Err,
	}
}
