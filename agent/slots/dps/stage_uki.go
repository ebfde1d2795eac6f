package dps

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// runningUKI opens the UKI that runs: its kernel is often that of the next version. When it cannot be told which one that
// is, or it is gone, all of the next one is fetched.
func (w *writer) runningUKI() (seeds, error) {
	none := seeds{close: func() error { return nil }}

	at := slices.IndexFunc(w.view.entries, func(e entry) bool { return e.rootHash != "" && e.rootHash == w.view.runningHash() })
	if at < 0 {
		return none, nil
	}

	path := w.view.entries[at].path

	file, err := w.view.files.Open(path)
	if isAbsent(err) {
		return none, nil
	}

	if err != nil {
		return seeds{}, fmt.Errorf("opening %s: %w", path, err)
	}

	return seeds{seeds: []osimage.Seed{{Name: path, Reader: file, Size: file.Size()}}, close: file.Close}, nil
}

// seeded is a source that need not fetch what is at hand.
type seeded interface {
	OpenSeeded(
		ctx context.Context, role osimage.Role, seeds []osimage.Seed, progress func(osimage.Progress),
	) (io.ReadCloser, error)
}

func (w *writer) openUKI(ctx context.Context, running seeds, tell slots.Progress) (io.ReadCloser, error) {
	if source, ok := w.source.(seeded); ok {
		return source.OpenSeeded(ctx, osimage.RoleUKI, running.seeds, tell)
	}

	return w.source.Open(ctx, osimage.RoleUKI, 0)
}

// writeUKI writes the UKI beside the boot entries, under a name that the boot loader does not list. It is small and is
// written anew when it is not there in full.
func (w *writer) writeUKI(ctx context.Context, content osimage.Content, tell slots.Progress) (err error) {
	found, err := fileDigest(ctx, w.view.files, stagedUKI, content.RawSize)
	if err != nil {
		return err
	}

	// Each try counts from 0 on. What those before it have read and fetched stays counted.
	var last, tried osimage.Progress

	known := func(now osimage.Progress) {
		last = afterTries(tried, now)
		tell(last)
	}

	// It is there: read back in the end.
	defer func() {
		if err == nil {
			last.Stage, last.Written = osimage.Verifying, content.RawSize
			tell(last)
		}
	}()

	if found == content.RawDigest {
		return nil
	}

	if err := w.view.files.Remove(stagedUKI); err != nil {
		return fmt.Errorf("removing %s: %w", stagedUKI, err)
	}

	running, err := w.runningUKI()
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, running.close()) }()

	err = w.createUKI(ctx, content, running, known)

	// A chunk's id has 64 bits only: what was taken from the running UKI may be wrong. And a mirror can be anybody. Only all of
	// it from the registry itself tells.
	for helped := len(running.seeds) > 0; osimage.HasOtherBytes(err) && (helped || w.distrustMirrors()); helped = false {
		if err := w.view.files.Remove(stagedUKI); err != nil {
			return fmt.Errorf("removing %s: %w", stagedUKI, err)
		}

		tried = last
		err = w.createUKI(ctx, content, seeds{}, known)
	}

	return err
}

// afterTries is the progress of a try together with what others before it, which were of no use, have read and fetched.
func afterTries(tried, now osimage.Progress) osimage.Progress {
	now.Surveyed += tried.Surveyed
	now.ToSurvey += tried.ToSurvey
	now.Fetched += tried.Fetched

	if now.ToFetch > 0 {
		now.ToFetch += tried.Fetched
	}

	return now
}

// distrustMirrors makes the source ask nobody but the registry itself. It returns true once, when somebody else was asked.
func (w *writer) distrustMirrors() bool {
	source, ok := w.source.(interface{ DistrustMirrors() bool })

	return ok && source.DistrustMirrors()
}

// createUKI writes the file, with what the running UKI has.
func (w *writer) createUKI(
	ctx context.Context, content osimage.Content, running seeds, tell slots.Progress,
) (err error) {
	reader, err := w.openUKI(ctx, running, tell)
	if err != nil {
		return fmt.Errorf("opening it: %w", err)
	}

	defer func() { err = errors.Join(err, reader.Close()) }()

	limited := &countingReader{ctx: ctx, reader: io.LimitReader(reader, content.RawSize+1), count: w.scheme.written}
	if err := w.view.files.Create(stagedUKI, limited); err != nil {
		return fmt.Errorf("writing %s: %w", stagedUKI, err)
	}

	return nil
}

// checkUKI refuses a UKI that does not start the image's root file system, or that would be sorted elsewhere.
func checkUKI(files BootFiles, file string, image osimage.Config) error {
	uki, err := readUKI(files, file)
	if err != nil {
		return slots.Refuse(v1alpha1.ReasonImageInvalid, "the UKI of image %s cannot be used: %v", image.Label(), err)
	}

	switch {
	case uki.RootHash() != image.RootHash:
		return slots.Refuse(v1alpha1.ReasonImageInvalid, "the UKI of image %s starts root hash %q instead of %s; put usrhash= or "+
			"roothash= on its command line", image.Label(), uki.RootHash(), image.RootHash)
	case uki.SortKey() != image.Name:
		return slots.Refuse(v1alpha1.ReasonImageInvalid, "the UKI of image %s has IMAGE_ID %q; it has to be the image's name %q",
			image.Label(), uki.SortKey(), image.Name)
	case uki.Version() != image.Version:
		return slots.Refuse(v1alpha1.ReasonImageInvalid, "the UKI of image %s has IMAGE_VERSION %q; it has to be the image's "+
			"version %q", image.Label(), uki.Version(), image.Version)
	default:
		return nil
	}
}
