package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/stayput-dev/stayput/osimage"
	"github.com/stayput-dev/stayput/osimage/verity"
)

// treeRoles are the contents that have their dm-verity hash tree in a content of its own, each with that one.
func treeRoles() [][2]osimage.Role {
	return [][2]osimage.Role{{osimage.RoleUSR, osimage.RoleUSRVerity}, {osimage.RoleRoot, osimage.RoleRootVerity}}
}

// checkPairs refuses a file system without its hash tree, and a tree without its file system.
func checkPairs(spec osimage.BuildSpec) error {
	if spec.Scheme != osimage.SchemeDPS {
		return nil
	}

	for _, roles := range treeRoles() {
		data, withData := spec.Inputs[roles[0]]
		tree, withTree := spec.Inputs[roles[1]]

		switch {
		case withData && !withTree:
			return mistake(flagOf(roles[0], data), fmt.Sprintf("its hash tree, --%s, is missing", roles[1]),
				fmt.Sprintf("give the file that `veritysetup format` has made of it with --%s", roles[1]))
		case withTree && !withData:
			return mistake(flagOf(roles[1], tree), fmt.Sprintf("its file system, --%s, is missing", roles[0]),
				fmt.Sprintf("give the file that it is the hash tree of with --%s", roles[0]))
		}
	}

	return nil
}

// checkTrees reads each file system and compares all of it with its hash tree. Nodes verify what they write, but only by
// the image's digests: one with another version's tree would be found by the first boot that fails.
func checkTrees(ctx context.Context, spec osimage.BuildSpec, show func(part string, done, total int64)) error {
	if spec.Scheme != osimage.SchemeDPS {
		return nil // Flatcar's tree lies behind its file system, and the UKI scheme has none.
	}

	for _, roles := range treeRoles() {
		data, tree := roles[0], roles[1]
		if _, given := spec.Inputs[data]; !given {
			continue
		}

		part := fmt.Sprintf("checking %s against its hash tree", data)
		pair := treePair{
			data: spec.Inputs[data], hashes: spec.Inputs[tree], dataRole: data, treeRole: tree, rootHash: spec.RootHash,
			show: func(done, total int64) { show(part, done, total) },
		}

		if err := pair.check(ctx); err != nil {
			return err
		}
	}

	return nil
}

// treePair is a file system and what shall be its hash tree.
type treePair struct {
	data, hashes       osimage.Input
	dataRole, treeRole osimage.Role
	rootHash           string
	show               func(done, total int64)
}

func (p treePair) check(ctx context.Context) (err error) {
	hashes, err := os.Open(p.hashes.Name)
	if err != nil {
		return fmt.Errorf("checking the hash tree: %w", err)
	}

	defer func() { err = errors.Join(err, hashes.Close()) }()

	tree, err := verity.Open(hashes, 0)
	if err == nil {
		err = tree.CheckRoot(p.rootHash)
	}

	if err != nil {
		return p.refuse(flagOf(p.treeRole, p.hashes), "it is not a hash tree with the root hash of --root-hash", err)
	}

	if tree.DataSize() != p.data.Size {
		return p.refuse(flagOf(p.dataRole, p.data),
			fmt.Sprintf("it has %d bytes, the hash tree in %s covers %d", p.data.Size, p.hashes.Name, tree.DataSize()), nil)
	}

	data, err := p.data.Open(ctx)
	if err != nil {
		return fmt.Errorf("checking %s: %w", p.dataRole, err)
	}

	defer func() { err = errors.Join(err, data.Close()) }()

	read := &countingReader{from: data, show: func(done int64) { p.show(done, p.data.Size) }}

	err = verity.Check(ctx, read, hashes, 0, p.rootHash)
	if errors.Is(err, verity.ErrMismatch) || errors.Is(err, verity.ErrNoTree) {
		return p.refuse(flagOf(p.dataRole, p.data), "it does not match its hash tree in "+p.hashes.Name, err)
	}

	if err != nil {
		return fmt.Errorf("checking %s against its hash tree: %w", p.data.Name, err)
	}

	return nil
}

func (p treePair) refuse(subject, detail string, cause error) error {
	return &osimage.Error{
		Kind: osimage.ErrInvalid, Subject: subject, Detail: detail, Err: cause,
		Fix: fmt.Sprintf("make the tree of this file: `veritysetup format %s %s`; the root hash that it prints belongs to --root-hash "+
			"and on the UKI's command line", p.data.Name, p.hashes.Name),
	}
}

// flagOf names a file as it was given.
func flagOf(role osimage.Role, input osimage.Input) string {
	return fmt.Sprintf("--%s %s", role, input.Name)
}

// countingReader tells how much was read.
type countingReader struct {
	from io.Reader
	done int64
	show func(done int64)
}

func (r *countingReader) Read(buffer []byte) (int, error) {
	count, err := r.from.Read(buffer)
	r.done += int64(count)
	r.show(r.done)

	return count, err
}
