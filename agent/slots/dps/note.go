package dps

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/stayput-dev/stayput/agent/durable"
	"github.com/stayput-dev/stayput/osimage"
)

const (
	noteFile = "dps-staging.json"
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
	// Synced are the bytes of each content that were written and synced.
	Synced map[osimage.Role]int64 `json:"synced,omitempty"`
	// Verified tells that everything was written and read back.
	Verified bool `json:"verified,omitempty"`
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

	// An earlier note that comes back might call bytes verified that are being written again.
	if err := durable.WriteFile(filepath.Join(s.stateDir, noteFile), content); err != nil {
		return fmt.Errorf("storing how far staging has come: %w", err)
	}

	return nil
}
