package osimage

import (
	"fmt"
	"testing"
)

func TestContentRanges(t *testing.T) {
	t.Parallel()

	for header, want := range map[string]contentRange{
		"bytes 0-0/1": {0, 0, 1}, "bytes 5-99/100": {5, 99, 100}, "bytes 5-99/*": {5, 99, -1},
		"bytes 0-9223372036854775806/9223372036854775807": {0, 1<<63 - 2, 1<<63 - 1},
	} {
		if got, ok := parseContentRange(header); !ok || got != want {
			t.Errorf("%q: %+v, %t, want %+v", header, got, ok, want)
		}
	}

	for _, header := range []string{
		"", "bytes", "bytes */100", "bytes 0-99", "bytes 9-8/100", "bytes 0-100/100", "bytes -1-5/100", "bytes 0--5/100",
		"items 0-9/100", "bytes 0-9/-1", "bytes 0-9/100, 20-29/100", "bytes 0-99999999999999999999/*", "bytes=0-9/100", "0-9/100",
	} {
		if got, ok := parseContentRange(header); ok {
			t.Errorf("%q was taken for %+v", header, got)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	for _, header := range []string{"bytes 0-99/100", "bytes 5-99/*", "bytes */7", "bytes 1-0/9", "bytes -1--1/-1"} {
		f.Add(header)
	}

	f.Fuzz(func(t *testing.T, header string) {
		got, ok := parseContentRange(header)
		if !ok {
			return
		}

		if got.first < 0 || got.last < got.first || got.size != -1 && got.size <= got.last {
			t.Fatalf("%q is %+v", header, got)
		}

		again, ok := parseContentRange(fmt.Sprintf("bytes %d-%d/%d", got.first, got.last, got.size))
		if got.size > 0 && (!ok || again != got) {
			t.Fatalf("%q is %+v and %+v", header, got, again)
		}
	})
}
