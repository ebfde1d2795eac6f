package v1alpha1

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCut(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text  string
		limit int
		want  string
	}{
		"short":                   {"abc", 8, "abc"},
		"as long as may be":       {"abcdefgh", 8, "abcdefgh"},
		"too long":                {"abcdefghi", 8, "abcd …"},
		"within a character":      {"abcéfghi", 8, "abc …"},
		"between two characters":  {"abéfghij", 8, "abé …"},
		"not UTF-8":               {"a\xffb", 8, "a?b"},
		"not UTF-8, and too long": {strings.Repeat("\xff", 9), 8, "?"},
		"empty":                   {"", 8, ""},
	} {
		if got := Cut(tt.text, tt.limit); got != tt.want {
			t.Errorf("%s: Cut(%q, %d) = %q, want %q", name, tt.text, tt.limit, got, tt.want)
		}
	}
}

func TestWhatIsCutIsTheBeginningOfTheText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, limit := rapid.String().Draw(t, "text"), rapid.IntRange(4, 64).Draw(t, "limit")
		cut := Cut(text, limit)
		if len(cut) > limit || !utf8.ValidString(cut) {
			t.Fatalf("%q has %d bytes, valid %t", cut, len(cut), utf8.ValidString(cut))
		}
		begin, short := strings.CutSuffix(cut, " …")
		// No more is lost than the mark and a character need.
		if cut != text && (!short || !strings.HasPrefix(text, begin) || len(cut) <= limit-utf8.UTFMax) {
			t.Fatalf("%q became %q", text, cut)
		}
	})
}
