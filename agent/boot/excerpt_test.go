package boot_test

import (
	"context"
	"encoding/json"
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

			return []byte(`{"_BOOT_ID":"abcd","MESSAGE":"first"}
{"_BOOT_ID":"abcd","MESSAGE":""}
{"_BOOT_ID":"abcd","MESSAGE":[27,91,51,49,109,114,101,100,255]}
{"_BOOT_ID":"abcd","MESSAGE":"login with password=hunter2"}
{"_BOOT_ID":"abcd","MESSAGE":"Bearer Token abc"}
{"_BOOT_ID":"abcd","MESSAGE":null}
{"_BOOT_ID":"abcd","MESSAGE":"last"}
`), nil
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

	if got := excerpts.PreviousBoot(t.Context(), "ab-cd"); got != "" {
		t.Errorf("the boot that asked for the reboot, gives %q", got)
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
			Journalctl: func(context.Context, ...string) ([]byte, error) { return entries(t, text), nil },
		}

		got := excerpts.PreviousBoot(t.Context(), "")
		if len(got) > boot.MaxExcerptBytes || len(got) < boot.MaxExcerptBytes/2 && strings.TrimSpace(text) != "" || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid: %v", len(got), utf8.ValidString(got))
		}
	}
}

// entries are the lines of a text as journal entries.
func entries(t *testing.T, text string) []byte {
	t.Helper()

	var output []byte

	for line := range strings.Lines(text) {
		entry, err := json.Marshal(map[string]string{"_BOOT_ID": "abcd", "MESSAGE": line})
		if err != nil {
			t.Fatal(err)
		}

		output = append(append(output, entry...), '\n')
	}

	return output
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
