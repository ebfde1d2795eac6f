package uki

import (
	"cmp"
	"strings"
)

// CompareVersions orders two versions as systemd-boot does (UAPI.10 Version Format Specification): below 0 when a is
// older, 0 when they are equal, above 0 when a is newer. Any text is a version.
//
// Where the text of the specification and systemd's own comparison differ, in whether a string that has ended is looked
// at before a '~', this follows systemd: the boot loader is what decides. So 1.0~rc1 is older than 1.0.
func CompareVersions(a, b string) int {
	for {
		a, b = dropSeparators(a), dropSeparators(b)

		if order, decided := comparePrefix(&a, &b, '~', -1); decided {
			return order
		}

		if a == "" || b == "" {
			return cmp.Compare(min(len(a), 1), min(len(b), 1))
		}

		if order, decided := comparePrefix(&a, &b, '-', -1); decided {
			return order
		}

		if order, decided := comparePrefix(&a, &b, '^', 1); decided {
			return order
		}

		if order, decided := comparePrefix(&a, &b, '.', -1); decided {
			return order
		}

		if order := compareRuns(&a, &b); order != 0 {
			return order
		}
	}
}

// comparePrefix decides when just one of the strings starts with the mark; that one gets the order given. A mark that
// both start with is taken off.
func comparePrefix(a, b *string, mark byte, order int) (int, bool) {
	aHas, bHas := strings.HasPrefix(*a, string(mark)), strings.HasPrefix(*b, string(mark))

	switch {
	case aHas && bHas:
		*a, *b = (*a)[1:], (*b)[1:]

		return 0, false
	case aHas:
		return order, true
	case bHas:
		return -order, true
	default:
		return 0, false
	}
}

// compareRuns compares and takes off the digits, when either starts with one, or else the letters that both start with.
func compareRuns(a, b *string) int {
	if startsWith(*a, isDigit) || startsWith(*b, isDigit) {
		aRun, bRun := strings.TrimLeft(takeRun(a, isDigit), "0"), strings.TrimLeft(takeRun(b, isDigit), "0")

		return cmp.Or(cmp.Compare(len(aRun), len(bRun)), strings.Compare(aRun, bRun))
	}

	return strings.Compare(takeRun(a, isLetter), takeRun(b, isLetter))
}

func takeRun(text *string, is func(byte) bool) string {
	end := 0
	for end < len(*text) && is((*text)[end]) {
		end++
	}

	run := (*text)[:end]
	*text = (*text)[end:]

	return run
}

func dropSeparators(text string) string {
	for text != "" && !isDigit(text[0]) && !isLetter(text[0]) && !strings.ContainsRune("-.~^", rune(text[0])) {
		text = text[1:]
	}

	return text
}

func startsWith(text string, is func(byte) bool) bool { return text != "" && is(text[0]) }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
