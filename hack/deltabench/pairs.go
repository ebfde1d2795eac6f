package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// pair is two package sets, and whether the kernel is among them.
type pair struct {
	name, why string
	old, new  func(*mirror, context.Context) (packages, error)
}

const (
	release = "trixie"
	before  = "bookworm"
)

func pairs(one string) []pair {
	first := set(release, false)

	return []pair{
		{"one", "only " + one + " is updated", first, swapped(false, one)},
		{"month", "all security and other updates since the release", first, set(release, true)},
		{"kernel", "another kernel and nothing else", withKernel(first), swapped(true, "linux-image-")},
		{"jump", "the next release", set(before, true), set(release, true)},
	}
}

func newPairsCommand() *cobra.Command {
	var (
		m      measuring
		names  []string
		kinds  []string
		onlyDo string
		one    string
	)

	command := &cobra.Command{
		Use: "pairs DIR", Short: "Make images of Debian package sets, and measure them in pairs", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return fmt.Errorf("finding the directory: %w", err)
			}

			source := &mirror{dir: dir}

			for _, pair := range pairs(one) {
				if !slices.Contains(names, pair.name) {
					continue
				}

				if err := pair.run(cmd.Context(), source, m, kinds, onlyDo); err != nil {
					return fmt.Errorf("pair %s: %w", pair.name, err)
				}
			}

			return nil
		},
	}
	m.flags(command)
	command.Flags().StringSliceVar(&names, "pair", []string{"one", "month", "kernel", "jump"}, "which pairs")
	command.Flags().StringSliceVar(&kinds, "image", []string{"squashfs", "erofs-lz4hc", "erofs"}, "which kinds of images")
	command.Flags().StringVar(&one, "package", "libzstd1", "the beginning of the names of the packages that pair one updates")
	command.Flags().StringVar(&onlyDo, "until", "measured", "stop when this is done: fetched, made, measured")

	return command
}

func (p pair) run(ctx context.Context, source *mirror, m measuring, kinds []string, until string) error {
	var trees, debs [2]string

	for i, side := range []func(*mirror, context.Context) (packages, error){p.old, p.new} {
		found, err := side(source, ctx)
		if err != nil {
			return err
		}

		debs[i] = fmt.Sprintf("%d packages", len(found))

		if until == "fetched" {
			continue
		}

		if trees[i], err = source.tree(ctx, found); err != nil {
			return err
		}
	}

	fmt.Printf("\n# %s: %s (%s, then %s)\n", p.name, p.why, debs[0], debs[1])

	if until == "fetched" {
		return nil
	}

	var err error
	if m.floor, err = source.floor(ctx, trees[0], trees[1]); err != nil {
		return err
	}

	for _, kind := range kinds {
		if m.old, err = image(ctx, kind, trees[0]); err != nil {
			return err
		}

		if m.new, err = image(ctx, kind, trees[1]); err != nil {
			return err
		}

		if until == "made" {
			continue
		}

		if err := m.run(ctx, os.Stdout); err != nil {
			return err
		}
	}

	return nil
}

// image makes an image of a tree, once, without times and random numbers.
func image(ctx context.Context, kind, tree string) (string, error) {
	const noTime = "0"

	path := tree + "." + kind
	part := path + ".part"
	erofs := []string{"mkfs.erofs", "--quiet", "-T" + noTime, "-U00000000-0000-4000-8000-000000000000", "--all-root", "-x-1"}

	commands := map[string][]string{
		"squashfs": {
			"mksquashfs", tree, part, "-noappend", "-quiet", "-no-progress", "-comp", "zstd", "-all-root", "-no-xattrs",
			"-mkfs-time", noTime, "-all-time", noTime,
		},
		"erofs": append(slices.Clone(erofs), "-Enoinline_data", part, tree),
		// As mkfs.erofs makes it without being told otherwise: the ends of files lie between the inodes.
		"erofs-inline": append(slices.Clone(erofs), part, tree),
		"erofs-lz4hc":  append(slices.Clone(erofs), "-zlz4hc", part, tree),
	}

	// squashfs-64k-nofrag is squashfs with blocks of 64 KiB and no fragments.
	if options, ok := strings.CutPrefix(kind, "squashfs-"); ok {
		commands[kind] = commands["squashfs"]

		for option := range strings.SplitSeq(options, "-") {
			if option == "nofrag" {
				commands[kind] = append(commands[kind], "-no-fragments")
			} else {
				commands[kind] = append(commands[kind], "-b", option)
			}
		}
	}

	command, ok := commands[kind]
	if !ok {
		return "", fmt.Errorf("%w: image %s", errUnknown, kind)
	}

	if _, err := os.Stat(path); err == nil {
		return path, nil
	}

	if err := os.RemoveAll(part); err != nil {
		return "", fmt.Errorf("removing what was left: %w", err)
	}

	if err := run(ctx, command...); err != nil {
		return "", err
	}

	return path, os.Rename(part, path)
}

// set is what a release has, with all updates or as it was released last.
func set(suite string, updated bool) func(*mirror, context.Context) (packages, error) {
	return func(m *mirror, ctx context.Context) (packages, error) {
		return m.packages(ctx, suite, updated, false)
	}
}

func withKernel(side func(*mirror, context.Context) (packages, error)) func(*mirror, context.Context) (packages, error) {
	return func(m *mirror, ctx context.Context) (packages, error) {
		found, err := side(m, ctx)
		if err != nil {
			return nil, err
		}

		kernels, err := m.packages(ctx, release, false, true)

		return found.swap(kernels, kernelPackage), err
	}
}

const kernelPackage = "linux-image-"

// swapped is the first state of the release, with the packages whose names begin with a prefix from its updates.
func swapped(kernel bool, prefix string) func(*mirror, context.Context) (packages, error) {
	return func(m *mirror, ctx context.Context) (packages, error) {
		found, err := m.packages(ctx, release, false, false)
		updated, err2 := m.packages(ctx, release, true, kernel)

		return found.swap(updated, prefix), errors.Join(err, err2)
	}
}

// packages are files by the name of the package.
type packages map[string]string

func (p packages) swap(others packages, prefix string) packages {
	result := packages{}

	for name, file := range p {
		if !strings.HasPrefix(name, prefix) {
			result[name] = file
		}
	}

	for name, file := range others {
		if strings.HasPrefix(name, prefix) {
			result[name] = file
		}
	}

	return result
}
