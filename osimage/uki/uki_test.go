package uki_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/osimage/uki"
	"github.com/stayput-dev/stayput/osimage/uki/ukitest"
)

const osRelease = "ID=lab\nVERSION_ID=7\nBUILD_ID=8\n"

func image(sections ...ukitest.Section) ukitest.Image {
	return ukitest.Image{Architecture: "amd64", Sections: sections}
}

func text(name, content string) ukitest.Section {
	return ukitest.Section{Name: name, Content: []byte(content)}
}

func TestRead(t *testing.T) {
	t.Parallel()

	whole := ukitest.Named("labos", "1.1.0", "arm64", " usrhash=AB panic=5\n\x00")

	got, err := uki.Read(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}

	if got.SortKey() != "labos" || got.Version() != "1.1.0" || got.RootHash() != "ab" || got.CommandLine != "usrhash=AB panic=5" ||
		got.KernelRelease != "6.12.38-test" || got.Architecture != "arm64" || !got.HasKernel || got.Signed || got.Size != int64(len(whole)) {
		t.Errorf("got %+v; the file has %d bytes", got, len(whole))
	}

	signed := image(text(".osrel", osRelease))
	signed.Signature = []byte("signature")
	signed.Architecture = "riscv64"
	whole = signed.Bytes()

	if got, err = uki.Read(bytes.NewReader(whole)); err != nil {
		t.Fatal(err)
	}

	if got.SortKey() != "lab" || got.Version() != "7" || got.RootHash() != "" || got.Architecture != "" || !got.Signed ||
		got.HasKernel || got.Size != int64(len(whole)) {
		t.Errorf("got %+v; the file has %d bytes", got, len(whole))
	}
}

// The boot loader takes the first section of a name, and those before the first .profile are the base's.
func TestReadTakesTheRightSection(t *testing.T) {
	t.Parallel()

	got, err := uki.Read(bytes.NewReader(image(text(".osrel", osRelease), text(".osrel", "ID=other\n"),
		text(".profile", "ID=debug"), text(".cmdline", "debug"), text(".linux", "x")).Bytes()))
	if err != nil || got.SortKey() != "lab" || got.CommandLine != "" || got.HasKernel {
		t.Errorf("got %+v, %v", got, err)
	}

	// Objcopy makes sections whose size on disk is a multiple of the alignment, and old ones say no virtual size.
	padded := image(text(".osrel", osRelease+strings.Repeat("\x00", 100))).Bytes()
	binary.LittleEndian.PutUint32(padded[64+24+240+8:], 0)

	if got, err := uki.Read(bytes.NewReader(padded)); err != nil || got.OSRelease["BUILD_ID"] != "8" {
		t.Errorf("got %+v, %v", got, err)
	}

	long := image(text(".osrel", osRelease+strings.Repeat("#", 1<<20)+"\nID=late\n")).Bytes()
	if got, err := uki.Read(bytes.NewReader(long)); err != nil || got.SortKey() != "lab" {
		t.Errorf("a section of 1 MiB: %v, %v", got.SortKey(), err)
	}
}

func TestReadRefuses(t *testing.T) {
	t.Parallel()

	whole := ukitest.Named("labos", "1.1.0", "amd64", "quiet")
	change := func(change func(file []byte)) []byte {
		file := bytes.Clone(whole)
		change(file)

		return file
	}

	for _, test := range []struct {
		says string
		file []byte
	}{
		{"DOS header", nil},
		{"DOS header", whole[:63]},
		{`it begins with "no"`, bytes.Repeat([]byte("no image"), 100)},
		{"the header at byte 64", whole[:80]},
		{"the header at byte 4294967295", change(func(file []byte) { copy(file[60:], "\xff\xff\xff\xff") })},
		{`at byte 64 is "NE`, change(func(file []byte) { file[64] = 'N' })},
		{"the optional header", whole[:100]},
		{"the table of 4 sections", whole[:400]},
		{"it has 65535 sections", change(func(file []byte) { copy(file[64+6:], "\xff\xff") })},
		{"section .osrel: the file ends", whole[:512]},
		{"section .cmdline: the file ends", whole[:1024]},
		{"no .osrel", image(text(".cmdline", "quiet")).Bytes()},
		{"no .osrel", image(text(".osrel", "")).Bytes()},
		{"no .osrel", image(text(".profile", "x"), text(".osrel", osRelease)).Bytes()},
	} {
		_, err := uki.Read(bytes.NewReader(test.file))
		if !errors.Is(err, uki.ErrNotUKI) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%v, want it to say %q", err, test.says)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(ukitest.Named("labos", "1.1.0", "amd64", "usrhash=ab panic=5"))
	f.Add(image(text(".osrel", osRelease), text(".profile", "x"), text(".osrel", "ID=b")).Bytes())
	f.Add([]byte("MZ"))

	signed := image(text(".osrel", osRelease))
	signed.Signature = []byte("signature")
	f.Add(signed.Bytes())

	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := uki.Read(bytes.NewReader(file))
		if (err == nil) == (len(got.OSRelease) == 0 && got.Size == 0) {
			t.Errorf("%+v, %v", got, err)
		}

		if err != nil && !errors.Is(err, uki.ErrNotUKI) {
			t.Error(err)
		}

		_, _ = got.CommandLine.Value("usrhash")
	})
}

func TestVariant(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"VARIANT_ID=server\nID=lab": "server", "VARIANT_ID=\"a-b_c.1\"": "a-b_c.1", "ID=lab": "", "VARIANT_ID=": "",
		"VARIANT_ID=Server": "", "VARIANT_ID=\"two words\"": "", "VARIANT_ID=" + strings.Repeat("a", 257): "",
	} {
		if got := uki.Variant(uki.ParseOSRelease(text)); got != want {
			t.Errorf("%q has the variant %q, want %q", text, got, want)
		}
	}
}

func FuzzOSRelease(f *testing.F) {
	f.Add("ID=lab\nNAME=\"Lab OS\"\n# x\nIMAGE_VERSION='1.0'\n")
	f.Add("=\n=\"\"\nA=\"\nB='")

	f.Fuzz(func(t *testing.T, text string) {
		for key, value := range uki.ParseOSRelease(text) {
			if strings.ContainsAny(key, "\n=") || strings.Contains(value, "\n") {
				t.Errorf("%q=%q", key, value)
			}
		}
	})
}
