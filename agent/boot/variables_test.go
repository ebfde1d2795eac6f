package boot_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stayput-dev/stayput/agent/boot"
)

const vendor = "-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"

func write(t *testing.T, content []byte, path ...string) {
	t.Helper()

	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	variables := boot.NewVariables(dir)

	if _, err := variables.Text(boot.LoaderBootCountPath); !errors.Is(err, boot.ErrNoVariable) {
		t.Errorf("an absent variable gives %v", err)
	}

	write(t, []byte("\x06\x00\x00\x00\\\x00E\x00\xe4\x00\x00\x00x\x00"), dir, boot.LoaderBootCountPath+vendor)

	if got, err := variables.Text(boot.LoaderBootCountPath); err != nil || got != `\Eä` {
		t.Errorf("Text() = %q, %v", got, err)
	}

	write(t, []byte("\x06\x00\x00\x00\x11\x00\x00\x00\x00\x00\x00\x80"), dir, boot.LoaderFeatures+vendor)

	if got, err := variables.Features(); err != nil || got != 0x8000000000000011 {
		t.Errorf("Features() = %#x, %v", got, err)
	}

	for _, short := range []string{"", "\x06\x00", "\x06\x00\x00\x00a"} {
		write(t, []byte(short), dir, boot.LoaderInfo+vendor)

		if got, err := variables.Text(boot.LoaderInfo); err == nil {
			t.Errorf("%q gives %q", short, got)
		}
	}
}

func TestSetAndDeleteVariable(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	variables := boot.NewVariables(dir)

	for _, text := range []string{"a.efi", "ü💾.efi"} {
		if err := variables.SetText(boot.LoaderEntryOneShot, text); err != nil {
			t.Fatal(err)
		}

		if got, err := variables.Text(boot.LoaderEntryOneShot); err != nil || got != text {
			t.Errorf("Text() = %q, %v, want %q", got, err, text)
		}
	}

	raw, err := os.ReadFile(filepath.Join(dir, boot.LoaderEntryOneShot+vendor))
	if err != nil || string(raw[:4]) != "\x07\x00\x00\x00" {
		t.Errorf("attributes % x, %v", raw[:4], err)
	}

	for range 2 {
		if err := variables.Delete(boot.LoaderEntryOneShot); err != nil {
			t.Error(err)
		}
	}

	if _, err := variables.Text(boot.LoaderEntryOneShot); !errors.Is(err, boot.ErrNoVariable) {
		t.Errorf("after deleting: %v", err)
	}

	if err := variables.SetText(boot.LoaderEntryDefault, "a.efi"); err == nil {
		t.Error("LoaderEntryDefault was set")
	}
}
