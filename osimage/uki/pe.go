package uki

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Places in a PE file, all numbers little-endian (Microsoft PE format: DOS header, signature, COFF header, optional
// header, section table).
const (
	dosHeaderSize  = 64
	atPEHeader     = 60
	peHeaderSize   = 24
	atMachine      = 4
	atSectionCount = 6
	atOptionalSize = 20

	magicPE32, magicPE32Plus = 0x10b, 0x20b
	// The certificate table is the fifth of the data directories, whose place depends on the magic.
	atCertificates32, atCertificates32Plus = 96 + 4*8, 112 + 4*8
	certificateEntrySize                   = 8

	sectionHeaderSize = 40
	sectionNameSize   = 8
	atVirtualSize     = 8
	atRawSize         = 16
	atRawOffset       = 20

	machineAMD64, machineARM64 = 0x8664, 0xaa64

	// maxSections is several times what a UKI with a device tree for each known board has.
	maxSections = 1024
)

var errNotPE = errors.New("no PE file")

type headers struct {
	machine  uint16
	sections []section
	// certificates is where the signatures for Secure Boot begin, and how long they are.
	certificatesAt, certificatesSize int64
}

type section struct {
	name string
	// offset and size are the place in the file. The file holds the section padded to its alignment; length is that of
	// the contents.
	offset, size, length int64
}

func readHeaders(file io.ReaderAt) (headers, error) {
	dos := make([]byte, dosHeaderSize)
	if err := readFull(file, dos, 0); err != nil {
		return headers{}, fmt.Errorf("%w: the DOS header: %w", errNotPE, err)
	}

	if !bytes.HasPrefix(dos, []byte("MZ")) {
		return headers{}, fmt.Errorf("%w: it begins with %q, want \"MZ\"", errNotPE, dos[:2])
	}

	at := int64(binary.LittleEndian.Uint32(dos[atPEHeader:]))
	header := make([]byte, peHeaderSize)

	if err := readFull(file, header, at); err != nil {
		return headers{}, fmt.Errorf("%w: the header at byte %d: %w", errNotPE, at, err)
	}

	if !bytes.HasPrefix(header, []byte("PE\x00\x00")) {
		return headers{}, fmt.Errorf("%w: at byte %d is %q, want \"PE\\x00\\x00\"", errNotPE, at, header[:4])
	}

	result := headers{machine: binary.LittleEndian.Uint16(header[atMachine:])}
	optional := make([]byte, binary.LittleEndian.Uint16(header[atOptionalSize:]))
	count := int(binary.LittleEndian.Uint16(header[atSectionCount:]))

	if count > maxSections {
		return headers{}, fmt.Errorf("%w: it has %d sections, at most %d are read", errNotPE, count, maxSections)
	}

	if err := readFull(file, optional, at+peHeaderSize); err != nil {
		return headers{}, fmt.Errorf("%w: the optional header at byte %d: %w", errNotPE, at+peHeaderSize, err)
	}

	result.readCertificates(optional)

	at += peHeaderSize + int64(len(optional))
	table := make([]byte, count*sectionHeaderSize)

	if err := readFull(file, table, at); err != nil {
		return headers{}, fmt.Errorf("%w: the table of %d sections at byte %d: %w", errNotPE, count, at, err)
	}

	for entry := table; len(entry) > 0; entry = entry[sectionHeaderSize:] {
		result.sections = append(result.sections, parseSection(entry))
	}

	return result, nil
}

func (h *headers) readCertificates(optional []byte) {
	if len(optional) < 2 {
		return
	}

	at := atCertificates32Plus
	if binary.LittleEndian.Uint16(optional) == magicPE32 {
		at = atCertificates32
	} else if binary.LittleEndian.Uint16(optional) != magicPE32Plus {
		return
	}

	if len(optional) >= at+certificateEntrySize {
		// In this directory alone the address is a place in the file.
		h.certificatesAt = int64(binary.LittleEndian.Uint32(optional[at:]))
		h.certificatesSize = int64(binary.LittleEndian.Uint32(optional[at+4:]))
	}
}

func (h *headers) signed() bool { return h.certificatesAt > 0 && h.certificatesSize > 0 }

func (h *headers) size() int64 {
	var end int64

	if h.signed() {
		end = h.certificatesAt + h.certificatesSize
	}

	for _, section := range h.sections {
		end = max(end, section.offset+section.size)
	}

	return end
}

func (h *headers) architecture() string {
	switch h.machine {
	case machineAMD64:
		return "amd64"
	case machineARM64:
		return "arm64"
	default:
		return ""
	}
}

func parseSection(entry []byte) section {
	name, _, _ := bytes.Cut(entry[:sectionNameSize], []byte{0})
	result := section{
		name:   string(name),
		offset: int64(binary.LittleEndian.Uint32(entry[atRawOffset:])),
		size:   int64(binary.LittleEndian.Uint32(entry[atRawSize:])),
		length: int64(binary.LittleEndian.Uint32(entry[atVirtualSize:])),
	}

	// Object files say 0; in images the rest of a longer section is not in the file.
	if result.length == 0 || result.length > result.size {
		result.length = result.size
	}

	return result
}

func (s section) text(file io.ReaderAt) (string, error) {
	text := make([]byte, min(s.length, maxTextBytes))
	if err := readFull(file, text, s.offset); err != nil {
		return "", err
	}

	return strings.TrimRight(string(text), "\x00"), nil
}

// readFull is io.ReadFull from a place; a file that ends there is io.ErrUnexpectedEOF.
func readFull(file io.ReaderAt, buffer []byte, at int64) error {
	n, err := file.ReadAt(buffer, at)
	if n == len(buffer) {
		return nil
	}

	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file ends at byte %d: %w", at+int64(n), io.ErrUnexpectedEOF)
	}

	return err
}
