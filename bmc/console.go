package bmc

import (
	"context"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// MaxConsoleLines is how many lines ConsoleTail gives at most: OpenBMC gives no more at once.
	MaxConsoleLines = 1000
	// maxConsoleLine bounds one line, in bytes.
	maxConsoleLine = 1024
)

// Console is a Machine whose BMC may keep what the machine prints on its serial console. Not every driver's Machine is
// one, and not every BMC keeps it.
type Console interface {
	// ConsoleTail reads the newest lines of the console, in the order in which they were printed, at most lines and at
	// most MaxConsoleLines. It changes nothing and is safe to repeat. The lines are as ConsoleLines gives them, fit to be
	// shown in a terminal; the machine may have printed secrets of its own. Of a BMC that keeps no console the error is of
	// kind Unsupported.
	ConsoleTail(ctx context.Context, lines int) ([]string, error)
}

// escapes are the escape sequences of ECMA-48 in their 7-bit and 8-bit forms: control sequences, control strings (up to
// their end, or that of the line), and all others. One that breaks off is matched as far as it goes.
var escapes = regexp.MustCompile(`(?:\x1b\[|\x{9b})[0-?]*[ -/]*[@-~]?` +
	`|(?:\x1b[\]PX^_]|[\x{90}\x{98}\x{9d}-\x{9f}])[^\r\n\x07\x1b\x{9c}]*(?:\x07|\x1b\\|\x{9c})?` +
	`|\x1b[ -/]*[0-~]?`)

// ConsoleLines splits what a machine printed into lines, and takes out of them what would do something to a terminal or
// to the reading: escape sequences, other control characters, and characters without a shape, such as those that turn
// the direction of writing. A line longer than 1 KiB is cut. Empty lines stay, but for one at the end.
func ConsoleLines(text string) []string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	text = escapes.ReplaceAllLiteralString(text, "")
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = cutLine(strings.TrimRight(strings.Map(shown, line), " "))
	}

	return lines
}

// shown is the character itself where it has a shape, and a space for any kind of one.
func shown(r rune) rune {
	switch {
	case unicode.IsPrint(r):
		return r
	case r == '\t', unicode.Is(unicode.Zs, r):
		return ' '
	default:
		return -1
	}
}

func cutLine(line string) string {
	if len(line) <= maxConsoleLine {
		return line
	}

	return strings.ToValidUTF8(line[:maxConsoleLine], "") + "…"
}
