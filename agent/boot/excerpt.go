package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxExcerptBytes bounds an excerpt: it goes into a status message of 2048 bytes, beside other text.
const MaxExcerptBytes = 1024

const (
	excerptDeadline = 10 * time.Second
	// maxPstoreBytes is what is read of each crash record, from its end.
	maxPstoreBytes = 16 << 10
)

// Excerpts reads what an earlier boot left behind.
type Excerpts struct {
	// System gives the places of crash records and of the persistent journal.
	System System
	// Journalctl runs journalctl with arguments and returns its output; nil runs the program.
	Journalctl func(ctx context.Context, arguments ...string) ([]byte, error)
}

// PreviousBoot returns the last errors of the boot before this one: the kernel's crash record when there is one, else the
// errors in the persistent journal. It is "" when there is neither, and when the journal holds no boot since the one with
// the boot ID given, for a boot that ended before the journal was kept has left nothing. When the system that is asked has
// started twice since, they are those of its own last boot. Secrets are the journal's own
// concern; lines that look as if they held one are left out.
func (e Excerpts) PreviousBoot(ctx context.Context, since string) string {
	if crash := e.crashRecord(); crash != "" {
		return crash
	}

	return e.journal(ctx, since)
}

func (e Excerpts) journal(ctx context.Context, since string) string {
	// A journal in /run is gone with its boot.
	if _, err := os.Stat(filepath.Join(e.System.Root, "/var/log/journal")); err != nil {
		return ""
	}

	ctx, cancel := context.WithTimeout(ctx, excerptDeadline)
	defer cancel()

	run := e.Journalctl
	if run == nil {
		run = journalctl
	}

	output, err := run(ctx, "--no-pager", "-q", "-b", "-1", "-p", "err", "-n", "20", "-o", "json")
	if err != nil {
		return "" // no such boot in the journal; there is nothing to show
	}

	var text strings.Builder

	for line := range bytes.Lines(output) {
		var entry journalEntry
		if json.Unmarshal(line, &entry) == nil && entry.BootID != strings.ReplaceAll(since, "-", "") {
			text.WriteString(entry.text() + "\n")
		}
	}

	return bounded(text.String())
}

// journalEntry is what is read of an entry in the journal's JSON format, https://systemd.io/JOURNAL_EXPORT_FORMATS/.
type journalEntry struct {
	BootID string `json:"_BOOT_ID"`
	// Message is a string, or a list of bytes when it is not plain text.
	Message json.RawMessage `json:"MESSAGE"`
}

func (e journalEntry) text() string {
	var text string
	if json.Unmarshal(e.Message, &text) == nil {
		return text
	}

	var numbers []uint16 // encoding/json takes a list of uint8 for base64
	if json.Unmarshal(e.Message, &numbers) != nil {
		return ""
	}

	content := make([]byte, 0, len(numbers))
	for _, number := range numbers {
		content = append(content, byte(number&0xff))
	}

	return string(content)
}

func journalctl(ctx context.Context, arguments ...string) ([]byte, error) {
	return exec.CommandContext(ctx, "journalctl", arguments...).Output()
}

// crashRecord is the end of the newest kernel crash record. systemd-pstore moves them from the firmware to /var.
func (e Excerpts) crashRecord() string {
	var records []string

	for _, pattern := range []string{
		"/sys/fs/pstore/dmesg-*", "/var/lib/systemd/pstore/dmesg-*", "/var/lib/systemd/pstore/*/dmesg*",
		"/var/lib/systemd/pstore/*/*/dmesg*",
	} {
		found, err := filepath.Glob(filepath.Join(e.System.Root, pattern))
		if err == nil {
			records = append(records, found...)
		}
	}

	newest, newestTime := "", time.Time{}

	for _, record := range records {
		info, err := os.Stat(record)
		if err == nil && info.Mode().IsRegular() && info.ModTime().After(newestTime) {
			newest, newestTime = record, info.ModTime()
		}
	}

	booted, err := e.System.bootTime()
	if newest == "" || err != nil || newestTime.Before(booted.Add(-crashAge)) {
		return ""
	}

	content, err := os.ReadFile(newest)
	if err != nil {
		return ""
	}

	return bounded(string(content[max(0, len(content)-maxPstoreBytes):]))
}

// crashAge is how long before this boot a crash record may be to be of the boot before: as long as a few tries take.
const crashAge = 2 * time.Hour

// bounded keeps the last lines that fit, without control characters and without lines that may hold a secret.
func bounded(text string) string {
	lines := strings.Split(strings.ToValidUTF8(text, "?"), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.TrimSpace(line) == "" || mayHoldSecret(line) })

	var kept []string

	size := 0

	for _, line := range slices.Backward(lines) {
		line = strings.TrimSpace(strings.Map(printable, line))
		if size+len(line)+1 > MaxExcerptBytes {
			if len(kept) == 0 {
				kept = append(kept, cut(line, MaxExcerptBytes))
			}

			break
		}

		kept = append(kept, line)
		size += len(line) + 1
	}

	slices.Reverse(kept)

	return strings.Join(kept, "\n")
}

func cut(text string, limit int) string {
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}

	return text[:limit]
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}

	return ' '
}

func mayHoldSecret(line string) bool {
	lower := bytes.ToLower([]byte(line))

	return slices.ContainsFunc([]string{"password", "passwd", "token", "secret", "authorization:", "private key"},
		func(word string) bool { return bytes.Contains(lower, []byte(word)) })
}
