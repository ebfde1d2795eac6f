package dps

import (
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	noteFile = "dps-staging.json"
	noteMode = 0o600
)

// note is how far staging has come. It holds what cannot be seen on the disk: that bytes were synced, and that they were
// read back. It is tied to the disk by the random part UUIDs that the spare slot got before its first byte was written;
// when they do not match, someone else wrote the slot since, and the note is worth nothing. So is one that is lost.
type note struct {
	// Image identifies the image: see imageKey.
	Image string `json:"image"`
	// RootHash is the image's.
	RootHash string `json:"rootHash"`
	// Data and Verity are the part UUIDs.
	Data   string `json:"data"`
	Verity string `json:"verity"`
	// Parts are how far each content was written and synced.
	Parts map[osimage.Role]partNote `json:"parts,omitempty"`
	// Verified tells that everything was written and read back.
	Verified bool `json:"verified,omitempty"`
}

// partNote is how far a content was written: that many bytes are synced, and Hash is the state of SHA-256 after them.
type partNote struct {
	Offset int64  `json:"offset"`
	Hash   []byte `json:"hash,omitempty"`
}

// imageKey identifies an image by everything that ends up on the disk.
func imageKey(image osimage.Config) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q\n", image.Name, image.Version, image.RootHash) // a hash never fails

	for _, role := range stagedRoles(image) {
		content, _ := image.Content(role)
		fmt.Fprintf(sum, "%q %q %d\n", role, content.RawDigest, content.RawSize)
	}

	return hex.EncodeToString(sum.Sum(nil))
}

// stagedRoles are the contents that a slot is made of, in the order in which they are written.
func stagedRoles(image osimage.Config) []osimage.Role {
	data, _ := image.Data()
	verity, _ := image.Verity()

	return []osimage.Role{data.Role, verity.Role, osimage.RoleUKI}
}

// isOf tells whether the note is about what is in the pair: nobody has written there since.
func (n note) isOf(p pair) bool {
	return n.Data == p.data.GUID && n.Verity == p.verity.GUID && p.rootHash() == ""
}

func (s *Scheme) loadNote() (note, error) {
	var n note

	content, err := os.ReadFile(filepath.Join(s.stateDir, noteFile))
	if errors.Is(err, fs.ErrNotExist) {
		return note{}, nil
	}

	if err != nil {
		return note{}, fmt.Errorf("reading how far staging has come: %w", err)
	}

	// Damaged is as good as lost: staging starts anew.
	if !json.Valid(content) {
		return note{}, nil
	}

	if err := json.Unmarshal(content, &n); err != nil {
		return note{}, fmt.Errorf("reading how far staging has come (remove %s to start anew): %w", noteFile, err)
	}

	return n, nil
}

func (s *Scheme) saveNote(n note) error {
	content, err := json.Marshal(n)
	if err != nil {
		return fmt.Errorf("storing how far staging has come: %w", err)
	}

	if err := renameio.WriteFile(filepath.Join(s.stateDir, noteFile), content, noteMode); err != nil {
		return fmt.Errorf("storing how far staging has come: %w", err)
	}

	// The rename has to last: an earlier note that comes back might call bytes verified that are being written again.
	dir, err := os.Open(s.stateDir)
	if err != nil {
		return fmt.Errorf("storing how far staging has come: %w", err)
	}

	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("storing how far staging has come: %w", err)
	}

	return nil
}

// resume returns the hash of the bytes that are on the medium, and how many they are. It starts anew when the state of
// the hash is from another Go release.
func (p partNote) resume() (hash.Hash, int64) {
	sum := sha256.New()
	if p.Offset == 0 {
		return sum, 0
	}

	state, ok := sum.(encoding.BinaryUnmarshaler)
	if !ok || state.UnmarshalBinary(p.Hash) != nil {
		return sha256.New(), 0
	}

	return sum, p.Offset
}

func newPartNote(offset int64, sum hash.Hash) (partNote, error) {
	state, ok := sum.(encoding.BinaryMarshaler)
	if !ok {
		return partNote{}, fmt.Errorf("storing the state of a hash: %w", errors.ErrUnsupported)
	}

	content, err := state.MarshalBinary()
	if err != nil {
		return partNote{}, fmt.Errorf("storing the state of a hash: %w", err)
	}

	return partNote{Offset: offset, Hash: content}, nil
}
