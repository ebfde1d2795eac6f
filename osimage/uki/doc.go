// Package uki reads what a unified kernel image (UAPI Unified Kernel Image specification) says of itself: the operating
// system, its version, its kernel and its command line. It reads headers and small text sections, never the whole file,
// and checks no signature.
//
// The standard library's debug/pe is not used: it reads every section's relocations and the symbol table into memory, so
// that a file of a few megabytes can make it take gigabytes.
package uki
