package boot

import (
	"fmt"
	"strconv"
	"strings"
)

// EntryName is the file name of a boot entry, taken apart: <id>[+LEFT[-DONE]].<ext> (Boot Loader Specification, "Boot
// counting").
type EntryName struct {
	// ID is the name without counters and extension, as it is written.
	ID string
	// Ext is the extension with its dot: ".efi" or ".conf".
	Ext string
	// Counted tells whether the name carries counters. Left and Done are its tries.
	Counted    bool
	Left, Done int
}

// ParseEntryName takes a file name apart. Like the boot loader it looks only at the last '+', and counters that are not
// right before the extension, or are no numbers, are part of the ID.
func ParseEntryName(file string) EntryName {
	ext := ""
	for _, known := range []string{".efi", ".conf"} {
		if len(file) > len(known) && strings.EqualFold(file[len(file)-len(known):], known) {
			ext = file[len(file)-len(known):]
		}
	}

	stem := strings.TrimSuffix(file, ext)
	plain := EntryName{ID: stem, Ext: ext}

	plus := strings.LastIndexByte(stem, '+')
	if plus < 0 || ext == "" {
		return plain
	}

	leftText, doneText, hasDone := strings.Cut(stem[plus+1:], "-")

	left, ok := parseTries(leftText)
	if !ok {
		return plain
	}

	done := 0
	if hasDone {
		if done, ok = parseTries(doneText); !ok {
			return plain
		}
	}

	return EntryName{ID: stem[:plus], Ext: ext, Counted: true, Left: left, Done: done}
}

// String puts the name together again, without leading zeroes in its counters.
func (e EntryName) String() string {
	switch {
	case !e.Counted:
		return e.ID + e.Ext
	case e.Done == 0:
		return fmt.Sprintf("%s+%d%s", e.ID, e.Left, e.Ext)
	default:
		return fmt.Sprintf("%s+%d-%d%s", e.ID, e.Left, e.Done, e.Ext)
	}
}

// Uncounted is the name of the entry once it is blessed.
func (e EntryName) Uncounted() EntryName { return EntryName{ID: e.ID, Ext: e.Ext} }

// Same tells whether both names are of the same entry: FAT does not tell upper from lower case, and the boot loader
// lower-cases the IDs that it reports.
func (e EntryName) Same(other EntryName) bool {
	return strings.EqualFold(e.ID, other.ID) && strings.EqualFold(e.Ext, other.Ext)
}

func parseTries(text string) (int, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}

	tries, err := strconv.Atoi(text)

	return tries, err == nil
}
