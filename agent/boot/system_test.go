package boot_test

import (
	"bytes"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots/dps/faulty"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()

	line := boot.CommandLine(`root=PARTLABEL=root rw panic=0  "dyndbg=file a.c +p" usrhash=AB12 opt="a b" panic=5 quiet`)

	for key, want := range map[string]string{
		"root": "PARTLABEL=root", "rw": "", "panic": "5", "dyndbg": "file a.c +p", "opt": "a b", "quiet": "", "usrhash": "AB12",
	} {
		if got, found := line.Value(key); !found || got != want {
			t.Errorf("Value(%q) = %q, %v, want %q", key, got, found, want)
		}
	}

	for _, absent := range []string{"pan", "rootx", "a", "", "b"} {
		if got, found := line.Value(absent); found {
			t.Errorf("Value(%q) = %q", absent, got)
		}
	}

	if got := line.RootHash(); got != "ab12" {
		t.Errorf("RootHash() = %q", got)
	}

	if got := boot.CommandLine("roothash=cd").RootHash(); got != "cd" {
		t.Errorf("RootHash() = %q", got)
	}
}

func TestParseOSRelease(t *testing.T) {
	t.Parallel()

	got := boot.ParseOSRelease("# comment\nID=lab\nNAME=\"Lab OS\"\n\nIMAGE_VERSION='1.0'\n#X=y\nODD=\"\nE=\n")
	want := map[string]string{"ID": "lab", "NAME": "Lab OS", "IMAGE_VERSION": "1.0", "ODD": "\"", "E": ""}

	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSystemReadsFiles(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	system := boot.System{Root: root}

	if _, err := system.BootID(); err == nil {
		t.Error("no file and no error")
	}

	write(t, []byte("abc-def\n"), root, "/proc/sys/kernel/random/boot_id")
	write(t, []byte("1234\n"), root, "/etc/machine-id")
	write(t, []byte("IMAGE_VERSION=2\n"), root, "/etc/os-release")

	if got, err := system.BootID(); err != nil || got != "abc-def" {
		t.Errorf("BootID() = %q, %v", got, err)
	}

	if got, err := system.MachineID(); err != nil || got != "1234" {
		t.Errorf("MachineID() = %q, %v", got, err)
	}

	if got, err := system.OSRelease(); err != nil || got["IMAGE_VERSION"] != "2" {
		t.Errorf("OSRelease() = %v, %v", got, err)
	}

	write(t, []byte("IMAGE_VERSION=3\n"), root, "/usr/lib/os-release")

	if got, err := system.OSRelease(); err != nil || got["IMAGE_VERSION"] != "3" {
		t.Errorf("OSRelease() = %v, %v: the slot's own file comes first", got, err)
	}
}

func TestReadUKI(t *testing.T) {
	t.Parallel()

	uki, err := boot.ReadUKI(bytes.NewReader(faulty.UKI("labos", "1.1.0", "usrhash=ab panic=5\n\x00")))
	if err != nil {
		t.Fatal(err)
	}

	if uki.SortKey() != "labos" || uki.Version() != "1.1.0" || uki.RootHash() != "ab" || uki.CommandLine != "usrhash=ab panic=5" {
		t.Errorf("got %+v", uki)
	}

	sections := map[string][]byte{".osrel": []byte("ID=lab\nVERSION_ID=7\nBUILD_ID=8\n"), ".cmdline": nil}
	if uki, err = boot.ReadUKI(bytes.NewReader(faulty.PE(sections, ".osrel"))); err != nil {
		t.Fatal(err)
	}

	if uki.SortKey() != "lab" || uki.Version() != "7" || uki.RootHash() != "" {
		t.Errorf("without IMAGE_ID: %+v", uki)
	}

	whole := faulty.UKI("labos", "1.1.0", "")
	for _, size := range []int{0, 1, 2, 64, 100, 200} {
		if _, err := boot.ReadUKI(bytes.NewReader(whole[:size])); !errors.Is(err, boot.ErrNotUKI) {
			t.Errorf("the first %d bytes give %v", size, err)
		}
	}

	if _, err := boot.ReadUKI(strings.NewReader(strings.Repeat("no image", 100))); !errors.Is(err, boot.ErrNotUKI) {
		t.Errorf("text gives %v", err)
	}
}
