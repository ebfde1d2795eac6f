// Package ukitest makes the smallest files that pass for unified kernel images.
package ukitest

import (
	"encoding/binary"
	"fmt"
)

// Section is a section of a PE file.
type Section struct {
	Name    string
	Content []byte
}

// Image says what a file shall hold.
type Image struct {
	// Architecture is a GOARCH: "amd64", "arm64", or something else for a machine that is neither.
	Architecture string
	Sections     []Section
	// Signature is put where signatures for Secure Boot are; none when it is empty.
	Signature []byte
}

// Named makes an image with the sections .osrel, .cmdline, .uname and .linux.
func Named(id, version, architecture, commandLine string) []byte {
	return Image{Architecture: architecture, Sections: []Section{
		{".osrel", fmt.Appendf(nil, "ID=lab\nIMAGE_ID=%s\nIMAGE_VERSION=%s\n", id, version)},
		{".cmdline", []byte(commandLine)},
		{".uname", []byte("6.12.38-test")},
		{".linux", []byte("kernel " + id + version)},
	}}.Bytes()
}

// Bytes is the file (Microsoft PE format).
func (i Image) Bytes() []byte {
	const (
		dosBytes, signatureAt, headerBytes, optionalBytes, sectionBytes = 64, 60, 24, 240, 40
		certificatesAt, alignment                                       = 112 + 4*8, 512
	)

	machine := map[string]uint16{"amd64": 0x8664, "arm64": 0xaa64}[i.Architecture]
	file := append([]byte("MZ"), make([]byte, dosBytes-2)...)
	binary.LittleEndian.PutUint32(file[signatureAt:], dosBytes)

	header := append([]byte("PE\x00\x00"), make([]byte, headerBytes-4)...)
	binary.LittleEndian.PutUint16(header[4:], machine)
	binary.LittleEndian.PutUint16(header[6:], uint16(len(i.Sections))) //nolint:gosec // a few
	binary.LittleEndian.PutUint16(header[20:], optionalBytes)

	optional := make([]byte, optionalBytes)
	binary.LittleEndian.PutUint16(optional, 0x20b)

	table := make([]byte, sectionBytes*len(i.Sections))
	start := dosBytes + headerBytes + optionalBytes + len(table)
	contents := append([]byte(nil), make([]byte, padding(start, alignment))...)

	for index, section := range i.Sections {
		entry := table[index*sectionBytes:]
		at := start + len(contents)
		contents = append(contents, section.Content...)
		size := len(section.Content) + padding(len(section.Content), alignment)
		contents = append(contents, make([]byte, size-len(section.Content))...)

		copy(entry[:8], section.Name)
		binary.LittleEndian.PutUint32(entry[8:], uint32(len(section.Content))) //nolint:gosec // small
		binary.LittleEndian.PutUint32(entry[16:], uint32(size))                //nolint:gosec // small
		binary.LittleEndian.PutUint32(entry[20:], uint32(at))                  //nolint:gosec // small
	}

	if len(i.Signature) > 0 {
		binary.LittleEndian.PutUint32(optional[certificatesAt:], uint32(start+len(contents))) //nolint:gosec // small
		binary.LittleEndian.PutUint32(optional[certificatesAt+4:], uint32(len(i.Signature)))  //nolint:gosec // small
		contents = append(contents, i.Signature...)
	}

	for _, part := range [][]byte{header, optional, table, contents} {
		file = append(file, part...)
	}

	return file
}

func padding(size, alignment int) int { return (alignment - size%alignment) % alignment }
