package bmc_test

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stayput-dev/stayput/bmc"
)

func TestConsoleLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"nothing":             {"", nil},
		"an end of line":      {"\n", nil},
		"plain":               {"[    0.000000] Linux version 6.12", []string{"[    0.000000] Linux version 6.12"}},
		"all ends of lines":   {"a\nb\r\nc\rd\r\n", []string{"a", "b", "c", "d"}},
		"empty lines":         {"a\n\nb\n", []string{"a", "", "b"}},
		"tabs and spaces":     {"a\tb\u00a0c\u2003d  ", []string{"a b c d"}},
		"colour":              {"\x1b[0;32mOK\x1b[0m", []string{"OK"}},
		"8-bit":               {"\u009b31mred\u009b0m", []string{"red"}},
		"clear and move":      {"\x1b[2J\x1b[Hlogin:", []string{"login:"}},
		"a window's title":    {"a\x1b]0;evil\ab", []string{"ab"}},
		"a title with ST":     {"a\x1b]0;evil\x1b\\b\u009d0;evil\u009cc", []string{"abc"}},
		"a string without":    {"a\x1b]52;c;cm0gLXJm\nb", []string{"a", "b"}},
		"device control":      {"a\x1bP1$r0m\x1b\\b", []string{"ab"}},
		"a character set":     {"\x1b(Ba\x1b=b\x1bcc", []string{"abc"}},
		"broken off":          {"a\x1b[31", []string{"a"}},
		"a lone escape":       {"a\x1b", []string{"a"}},
		"escape in escape":    {"\x1b\x1b[31ma\x1b[\x1b[0mb", []string{"ab"}},
		"rebuilt by removal":  {"\x1b\x1b[0m[31mx", []string{"[31mx"}},
		"other controls":      {"a\x00\x07\x08\x7f\u0085b", []string{"ab"}},
		"direction, unseen":   {"a\u202eb\u2066c\u200bd\ufeff", []string{"abcd"}},
		"line separators":     {"a\u2028b\u2029c", []string{"abc"}},
		"no UTF-8":            {"a\xff\xfeb", []string{"a\ufffdb"}},
		"letters":             {"Grüße, Ελλάδα", []string{"Grüße, Ελλάδα"}},
		"long":                {strings.Repeat("x", 5000), []string{strings.Repeat("x", 1024) + "…"}},
		"long, in the middle": {strings.Repeat("x", 1023) + "ü", []string{strings.Repeat("x", 1023) + "…"}},
	} {
		if got := bmc.ConsoleLines(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func FuzzConsoleLines(f *testing.F) {
	for _, seed := range []string{"\x1b[31ma\nb", "\u009d0;x\u009c", "\x1b\x1b[m[", "\xc2\x9b0m"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, line := range bmc.ConsoleLines(text) {
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) || len(line) > 1024+len("…") {
				t.Errorf("%q gives %q", text, line)
			}
		}
	})
}
