package osimage

import (
	"encoding/json"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Manifests come from anybody. What is read of one can be put into a folder: its digests are no paths, its sizes no
// surprise.
func FuzzReadManifest(f *testing.F) {
	f.Add(`{"schemaVersion":2,"config":{"digest":"sha256:` + strings.Repeat("a", 64) + `","size":2},"layers":[]}`)
	f.Add(`{"manifests":[{"digest":"sha256:` + strings.Repeat("0", 64) + `","size":-1}]}`)
	f.Add(`{"blobs":[{"digest":"sha512:` + strings.Repeat("0", 128) + `","size":1}],"subject":null}`)
	f.Add(`{"layers":[{"digest":"sha256:../../etc/passwd"}]}`)
	f.Add(`{"layers":[{}]}`)
	f.Add(`[]`)

	f.Fuzz(func(t *testing.T, text string) {
		manifest := copiedManifest{digest: digestOfBytes([]byte(text)), data: []byte(text)}

		contents, err := readManifest(manifest)
		if err != nil {
			return
		}

		plan := &copyPlan{from: &folderStore{dir: "/folder"}, seen: map[string]bool{}, blobs: map[string]bool{}}

		node, err := plan.node(manifest, contents)
		if err != nil {
			return
		}

		for _, blob := range node.blobs {
			path := blobPath("/folder", blob.Digest.String())
			if blob.Size < 0 || strings.Contains(path, "..") || !strings.HasPrefix(path, "/folder/blobs/sha") {
				t.Errorf("%q has the blob %+v at %s", text, blob, path)
			}
		}
	})
}

// Merging loses no signature of either side, and adds none twice.
func FuzzMergeSignatures(f *testing.F) {
	f.Add("ab", "bc")
	f.Add("", "a")
	f.Add("aa", "")

	f.Fuzz(func(t *testing.T, theirs, ours string) {
		// Two that are not text can be one letter together.
		theirs, ours = strings.ToValidUTF8(theirs, ""), strings.ToValidUTF8(ours, "")

		merged, changed, err := mergeSignatures(signatureManifest(t, theirs), signatureManifest(t, ours))
		if err != nil {
			t.Fatal(err)
		}

		manifest, err := v1.ParseManifest(strings.NewReader(string(merged.data)))
		if err != nil {
			t.Fatal(err)
		}

		have := map[string]bool{}
		for _, layer := range manifest.Layers {
			have[layer.Annotations["signature"]] = true
		}

		grown := false

		for _, letter := range theirs + ours {
			if !have[string(letter)] {
				t.Errorf("%q of %q and %q is lost", letter, theirs, ours)
			}

			grown = grown || !strings.ContainsRune(theirs, letter)
		}

		if changed != grown {
			t.Errorf("%q and %q: changed is %t", theirs, ours, changed)
		}
	})
}

// signatureManifest has a layer for each letter, all with the same payload.
func signatureManifest(t *testing.T, letters string) copiedManifest {
	t.Helper()

	same := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("1", 64)}
	manifest := v1.Manifest{SchemaVersion: 2, Config: v1.Descriptor{Digest: same}, Layers: []v1.Descriptor{}}

	for _, letter := range letters {
		manifest.Layers = append(manifest.Layers, v1.Descriptor{
			Digest: same, Annotations: map[string]string{"signature": string(letter)},
		})
	}

	data, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}

	return copiedManifest{digest: digestOfBytes(data), data: data}
}
