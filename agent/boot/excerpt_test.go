package boot_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stayput-dev/stayput/agent/boot"
)

func TestExcerptFromJournal(t *testing.T) {
	t.Parallel()

	root := t.TempDir()

	var asked []string

	excerpts := boot.Excerpts{
		System: boot.System{Root: root},
		Journalctl: func(_ context.Context, arguments ...string) ([]byte, error) {
			asked = arguments

			return []byte("first\n\n\x1b[31mred\xff\nlogin with password=hunter2\nBearer Token abc\nlast\n"), nil
		},
	}

	if got := excerpts.PreviousBoot(t.Context(), ""); got != "" {
		t.Errorf("a journal that is not kept gives %q", got)
	}

	write(t, nil, root, "/var/log/journal/x")

	if got := excerpts.PreviousBoot(t.Context(), ""); got != "first\n[31mred?\nlast" {
		t.Errorf("got %q", got)
	}

	if !slices.Contains(asked, "-1") {
		t.Errorf("journalctl was called with %v", asked)
	}

	excerpts.PreviousBoot(t.Context(), "ab-cd")

	if !slices.Contains(asked, "abcd") {
		t.Errorf("journalctl was called with %v", asked)
	}

	excerpts.Journalctl = func(context.Context, ...string) ([]byte, error) { return []byte("x"), errNoBus }

	if got := excerpts.PreviousBoot(t.Context(), ""); got != "" {
		t.Errorf("a boot that is not in the journal gives %q", got)
	}
}

func TestExcerptIsBounded(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	write(t, nil, root, "/var/log/journal/x")

	for _, text := range []string{strings.Repeat("ä", 3000), strings.Repeat("line of text\n", 1000), strings.Repeat("\n", 5000)} {
		excerpts := boot.Excerpts{
			System:     boot.System{Root: root},
			Journalctl: func(context.Context, ...string) ([]byte, error) { return []byte(text), nil },
		}

		got := excerpts.PreviousBoot(t.Context(), "")
		if len(got) > boot.MaxExcerptBytes || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
	}
}

func TestExcerptFromCrashRecord(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	excerpts := boot.Excerpts{System: boot.System{Root: root}}
	record := filepath.Join(root, "/var/lib/systemd/pstore/1700000000/dmesg.txt")

	write(t, []byte("600.50 100.00\n"), root, "/proc/uptime")
	write(t, []byte("Kernel panic - not syncing: VFS\n"), record)

	if got := excerpts.PreviousBoot(t.Context(), ""); got != "Kernel panic - not syncing: VFS" {
		t.Errorf("got %q", got)
	}

	old := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(record, old, old); err != nil {
		t.Fatal(err)
	}

	if got := excerpts.PreviousBoot(t.Context(), ""); got != "" {
		t.Errorf("a record of long ago gives %q", got)
	}
}
