// Package osimage is for machine images as OCI artifacts: it builds them from files, pushes them, resolves a tag to a
// digest, streams a content's raw bytes from any offset, and writes them to a medium with read-back verification.
//
// What an older content has, in the running slot, in the spare one or in any file, is not fetched again: contents are cut
// into chunks (package chunk), and only the frames of the layer that have a missing one are asked for, in ranges.
//
// What is read is verified: the manifest against its digest, the config against the manifest, each layer against its
// digest and size, and the raw bytes against the config. A broken transfer is taken up where it stopped. Memory stays
// below 64 MiB whatever the image's size, but for Build, which takes up to 128 MiB, and nothing is copied to a temporary
// file.
//
// It refuses artifacts of others, images of another architecture, contents larger than the place they go to, plain
// HTTP and unknown certificate authorities unless asked. It knows nothing of Kubernetes, of slots or of boot entries:
// what becomes bootable is decided elsewhere, and only after Write returned nil.
//
// The format is described in docs/image-format.md.
package osimage
