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

			update, err := osimage.Diff(background(t), old, d.image)
			if err != nil {
				t.Fatal(err)
			}

			contents := update.Contents

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

// What only first disks have is no part of an update, however much of it changed.
func TestDiffWithoutFirstDisks(t *testing.T) {
	t.Parallel()

	parts := someContents()
	parts[osimage.RoleState], parts[osimage.RoleLoader] = randomBytes(4, 200_000), randomBytes(5, 50_000)
	images := map[uint64]*osimage.Image{}

	for seed := range uint64(2) {
		parts[osimage.RoleState] = randomBytes(10+seed, 200_000)

		image, err := osimage.OpenLayout(t.Context(), build(t, parts), "")
		if err != nil {
			t.Fatal(err)
		}

		images[seed] = image
	}

	update, err := osimage.Diff(background(t), images[0], images[1])
	if err != nil {
		t.Fatal(err)
	}

	var want osimage.DiffTotal

	for _, content := range update.Contents {
		if content.Role == osimage.RoleState || content.Role == osimage.RoleLoader || !content.Unchanged {
			t.Errorf("%+v", content)
		}

		want.LayerSize += content.LayerSize
		want.IndexFetch += content.IndexFetch
	}

	want.FetchWithIndex = want.IndexFetch

	if len(update.Contents) != 3 || want.IndexFetch == 0 || update.Total != want {
		t.Errorf("%+v, want the total %+v", update, want)
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

	update, err := osimage.Diff(t.Context(), old, next)
	if err != nil {
		t.Fatal(err)
	}

	usr := update.Contents[0]
	if usr.Fetch != usr.LayerSize || usr.IndexFetch != 0 || !usr.Unchanged {
		t.Errorf("%+v", usr)
	}
}
