// Package packed gives random access to artifacts that may come compressed with bzip2, gzip, xz or zstd. What is
// compressed is unpacked into a temporary file without a name, so that nothing is left behind, and blocks of zeros take no
// room there. Formats are told apart by their first bytes, never by the file's name.
package packed
