package osimage

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
)

// mirroredBlob is a blob that a mirror has in another form, and perhaps the registry too.
type mirroredBlob struct {
	mirror, registry []byte
	trusted          bool
}

func (m *mirroredBlob) open(_ context.Context, _ blob, from, to int64) (io.ReadCloser, error) {
	data := m.registry
	if m.trusted {
		data = m.mirror
	}

	return io.NopCloser(io.NewSectionReader(bytes.NewReader(data), from, to-from)), nil
}

func (m *mirroredBlob) distrustMirrors() bool {
	was := m.trusted
	m.trusted = false

	return was
}

// A manifest can say any size.
func TestReadBlobOfNoSize(t *testing.T) {
	t.Parallel()

	if _, err := readBlob(t.Context(), &mirroredBlob{}, blob{size: -4096, subject: "config"}); !errors.Is(err, ErrNotAnImage) {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A blob that is too large to be verified before it comes from a mirror, such as a large chunk index, is asked for again.
func TestReadBlobFromAMirrorThatLies(t *testing.T) {
	t.Parallel()

	right := make([]byte, maxVerified+1)
	source := blob{digest: digestOfBytes(right), size: int64(len(right)), subject: "chunk ids"}

	for name, test := range map[string]struct {
		mirror, registry []byte
		want             error
	}{
		"another":  {bytes.Repeat([]byte{1}, len(right)), right, nil},
		"a part":   {right[:100], right, nil},
		"too much": {slices.Concat([]byte{1}, right), right, nil},
		"both":     {right[1:], right[1:], ErrWrongDigest},
	} {
		data, err := readBlob(t.Context(), &mirroredBlob{mirror: test.mirror, registry: test.registry, trusted: true}, source)
		if !errors.Is(err, test.want) || test.want == nil && !bytes.Equal(data, right) {
			t.Errorf("%s: %d bytes, %v", name, len(data), err)
		}
	}
}
