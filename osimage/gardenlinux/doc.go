// Package gardenlinux reads Garden Linux releases whose whole operating system is one unified kernel image: the flavours
// with the feature _usi. It reads the files of a build, and Garden Linux's own OCI artifacts in a registry, so that
// nothing needs to be published again.
//
// Other flavours are refused: their root file system is written to while they run, and cannot be updated in place
// (Garden Linux, docs/explanation/boot-modes.md).
package gardenlinux
