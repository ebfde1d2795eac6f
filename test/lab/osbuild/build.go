package osbuild

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

// Image is the five parts of a built version, as files named by their role in Dir.
type Image struct {
	Variant Variant
	Dir     string
	// RootHash is the dm-verity root hash of usr, 64 hex digits.
	RootHash string
}

// Path is the file of a part: "usr", "usr-verity", "uki", "loader" or "state".
func (i Image) Path(role string) string {
	return filepath.Join(i.Dir, role)
}

// Build makes the parts of a version, or finds those of an earlier call with the same inputs, which takes a second.
// It needs root, and the host packages of hack/lab/packages.txt; the first call on a machine downloads some 100 MB of
// Debian packages and takes about two minutes, each further version some ten seconds. Calls at the same time, also
// of other processes, wait for each other.
func Build(ctx context.Context, inputs Inputs, variant Variant) (Image, error) {
	if err := variant.Validate(); err != nil {
		return Image{}, err
	}

	image, err := build(ctx, inputs, variant)
	if err != nil {
		return Image{}, fmt.Errorf("building OS %s: %w", variant, err)
	}

	return image, nil
}

func build(ctx context.Context, inputs Inputs, variant Variant) (Image, error) {
	store, err := openStore(ctx, inputs)
	if err != nil {
		return Image{}, err
	}
	defer store.close()

	base, baseKey, err := buildBase(ctx, store)
	if err != nil {
		return Image{}, err
	}

	initrd, initrdKey, err := buildInitrd(ctx, store, base, baseKey)
	if err != nil {
		return Image{}, err
	}

	state, err := buildState(ctx, store, base, baseKey)
	if err != nil {
		return Image{}, err
	}

	return buildVersion(ctx, store, versionParts{base, initrd, state, initrdKey}, variant)
}

// store is the cache, locked for this process.
type store struct {
	inputs Inputs
	// close gives the lock back.
	close func()
}

const (
	modeFolder = 0o755
)

func openStore(ctx context.Context, inputs Inputs) (*store, error) {
	path := filepath.Join(inputs.Cache, "osbuild.lock")

	unlock, err := tools.Lock(ctx, path, func() { inputs.logf("waiting for another build (%s)", path) })
	if err != nil {
		return nil, fmt.Errorf("opening the cache: %w", err)
	}

	return &store{inputs: inputs, close: unlock}, nil
}

// once returns the folder of that name, after fill has filled it, if it was not there yet. A folder is there in full
// or not at all.
func (s *store) once(name, what string, fill func(dir string) error) (string, error) {
	final := filepath.Join(s.inputs.Cache, name)
	if _, err := os.Stat(final); err == nil {
		top, _, _ := strings.Cut(name, string(filepath.Separator))

		return final, tools.MarkUsed(filepath.Join(s.inputs.Cache, top))
	}

	begin := time.Now()

	s.inputs.logf("%s …", what)

	if err := os.MkdirAll(filepath.Dir(final), modeFolder); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}

	unfinished := final + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", fmt.Errorf("%s: removing an unfinished earlier build: %w", what, err)
	}

	if err := os.Mkdir(unfinished, modeFolder); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}

	if err := fill(unfinished); err != nil {
		return "", errors.Join(fmt.Errorf("%s: %w", what, err), os.RemoveAll(unfinished))
	}

	if err := os.Rename(unfinished, final); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}

	s.inputs.logf("%s: done in %s", what, time.Since(begin).Round(time.Second/10)) //nolint:mnd // tenths

	return final, nil
}

// versionParts are what all versions share.
type versionParts struct {
	base, initrd, state string
	initrdKey           string
}

func buildVersion(ctx context.Context, store *store, parts versionParts, variant Variant) (Image, error) {
	name, err := keyOf(func(k key) error {
		errs := []error{
			k.text(parts.initrdKey), k.tree(baseFiles), k.tree(overlayFiles), k.tree(sources),
		}
		programs := store.inputs.programs()
		for _, name := range slices.Sorted(maps.Keys(programs)) {
			errs = append(errs, k.program(name, programs[name]))
		}

		return errors.Join(errs...)
	})
	if err != nil {
		return Image{}, err
	}

	inside := chroot{root: filepath.Join(parts.base, "tree")}

	dir, err := store.once(filepath.Join("osbuild-"+name, variant.String()), "OS "+variant.String(),
		func(dir string) error { return makeVersion(ctx, inside, store.inputs, parts, variant, dir) })
	if err != nil {
		return Image{}, err
	}

	// The state has its own key, for it changes with the agent, and the slots do not.
	if err := linkAs(filepath.Join(parts.state, "state"), filepath.Join(dir, "state")); err != nil {
		return Image{}, err
	}

	hash, err := os.ReadFile(filepath.Join(dir, "roothash"))
	if err != nil {
		return Image{}, fmt.Errorf("reading the root hash: %w", err)
	}

	return Image{Variant: variant, Dir: dir, RootHash: string(hash)}, nil
}

// linkAs makes name another name of the file, in place of what had that name.
func linkAs(file, name string) error {
	next := name + ".next"

	err := os.Remove(next)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("linking %s: %w", name, err)
	}

	if err := os.Link(file, next); err != nil {
		return fmt.Errorf("linking %s: %w", name, err)
	}

	if err := os.Rename(next, name); err != nil {
		return fmt.Errorf("linking %s: %w", name, err)
	}

	return nil
}
