package uki_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/stayput-dev/stayput/osimage/uki"
)

// The examples of UAPI.10, and pairs that systemd's own tests order.
func TestCompareVersionsExamples(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"11", "11", 0},
		{"systemd-123", "systemd-123", 0},
		{"bar-123", "foo-123", -1},
		{"123a", "123", 1},
		{"123.a", "123", 1},
		{"123.a", "123.b", -1},
		{"123a", "123.a", 1},
		{"11α", "11β", 0},
		{"A", "a", -1},
		{"", "0", -1},
		{"0.", "0", 1},
		{"0.0", "0", 1},
		{"1_", "1", 0},
		{"_1", "1", 0},
		{"1_", "1.2", -1},
		{"1_2_3", "1.3.3", 1},
		{"1+", "1", 0},
		{"+1", "1", 0},
		{"1+", "1.2", -1},
		{"1+2+3", "1.3.3", 1},
		{"123.45-67.88", "123.45-67.9", 1},
		{"124", "123", 1},
		{"123.45~rc1", "123.45", -1},
		{"1.0~rc1", "1.0~rc2", -1},
		{"1.0~rc1", "1.0", -1},
		{"1.0^post", "1.0", 1},
		{"1.0^1", "1.0.1", 1},
		{"1.0-1", "1.0.1", -1},
		{"1.0-1", "1.0", 1},
		{"1.10.0", "1.9.0", 1},
		{"1.01", "1.1", 0},
		{"99999999999999999999999", "99999999999999999999998", 1},
		{"1.1.0", "1.0.0", 1},
	} {
		if got := uki.CompareVersions(tt.a, tt.b); got != tt.want {
			t.Errorf("CompareVersions(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}

		if got := uki.CompareVersions(tt.b, tt.a); got != -tt.want {
			t.Errorf("CompareVersions(%q, %q) = %d, want %d", tt.b, tt.a, got, -tt.want)
		}
	}
}

func TestCompareVersionsIsAnOrder(t *testing.T) {
	t.Parallel()

	version := rapid.StringMatching(`[0-9a-bA-B.~^_+-]{0,8}`)

	rapid.Check(t, func(t *rapid.T) {
		a, b, c := version.Draw(t, "a"), version.Draw(t, "b"), version.Draw(t, "c")
		ab, bc, ac := uki.CompareVersions(a, b), uki.CompareVersions(b, c), uki.CompareVersions(a, c)

		if uki.CompareVersions(a, a) != 0 {
			t.Fatalf("%q is not equal to itself", a)
		}

		if ab != -uki.CompareVersions(b, a) {
			t.Fatalf("%q and %q are ordered differently from both sides", a, b)
		}

		if ab <= 0 && bc <= 0 && ac > 0 {
			t.Fatalf("%q <= %q <= %q, but the first is newer than the last", a, b, c)
		}
	})
}
