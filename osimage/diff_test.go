package osimage_test

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/stayput-dev/stayput/osimage"
)

// What Diff tells is what Write fetches.
func TestDiff(t *testing.T) {
	t.Parallel()

	oldUSR, _ := update()
	oldParts := someContents()
	oldParts[osimage.RoleUSR] = oldUSR

	for name, strip := range map[string]bool{"with the old index": false, "without the old index": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			dir := build(t, oldParts)

			if strip {
				tamper(t, dir, func(config *osimage.Config, manifest *v1.Manifest) {
					for at := range config.Contents {
						dropIndex(&config.Contents[at], manifest)
					}
				})
			}

			old, err := osimage.OpenLayout(t.Context(), dir, "")
			if err != nil {
				t.Fatal(err)
			}

			d := newDelta(t)

			contents, err := osimage.Diff(background(t), old, d.image)
			if err != nil {
				t.Fatal(err)
			}

			d.check(t, d.write(t, osimage.WriteOptions{Seeds: []osimage.Seed{d.seed}}))

			usr, uki := contents[0], contents[2]
			if usr.Unchanged || usr.Fetch != d.planned[0].Fetch || usr.Reused != d.planned[0].Reused || usr.Requests == 0 {
				t.Errorf("usr: %+v, Write planned %+v", usr, d.planned)
			}

			if !uki.Unchanged || uki.Fetch != 0 {
				t.Errorf("the UKI is the same: %+v", uki)
			}
		})
	}
}

// An image that was made by other tools is fetched in full.
func TestDiffWithoutAnIndex(t *testing.T) {
	t.Parallel()

	dir := build(t, someContents())
	old, err := osimage.OpenLayout(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}

	other := build(t, someContents())
	tamper(t, other, func(config *osimage.Config, manifest *v1.Manifest) { dropIndex(&config.Contents[0], manifest) })

	next, err := osimage.OpenLayout(t.Context(), other, "")
	if err != nil {
		t.Fatal(err)
	}

	contents, err := osimage.Diff(t.Context(), old, next)
	if err != nil || contents[0].Fetch != contents[0].LayerSize || contents[0].IndexSize != 0 || !contents[0].Unchanged {
		t.Errorf("%+v, %v", contents, err)
	}
}
