package osbuild

import (
	"debug/elf"
	"encoding/binary"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/onsi/gomega"
	"pgregory.net/rapid"
)

// TestKeyTellsWordsApart: the borders of words count, or two different inputs could share a cache folder.
func TestKeyTellsWordsApart(t *testing.T) {
	t.Parallel()

	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOf(rapid.String())
		one, other := words.Draw(t, "one"), words.Draw(t, "other")
		equal := len(one) == len(other) && strings.Join(one, "\x00") == strings.Join(other, "\x00")

		keys := make([]string, 2)
		for i, list := range [][]string{one, other} {
			name, err := keyOf(func(k key) error { return k.text(list...) })
			if err != nil {
				t.Fatal(err)
			}

			keys[i] = name
		}

		if (keys[0] == keys[1]) != equal {
			t.Fatalf("%q and %q: keys %v", one, other, keys)
		}
	})
}

func TestKeyOfFiles(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	keyOfTree := func(files fstest.MapFS) string {
		name, err := keyOf(func(k key) error { return k.tree(files) })
		g.Expect(err).NotTo(gomega.HaveOccurred())

		return name
	}

	plain := keyOfTree(fstest.MapFS{"a.go": {Data: []byte("1")}})
	g.Expect(keyOfTree(fstest.MapFS{"a.go": {Data: []byte("1")}})).To(gomega.Equal(plain))
	g.Expect(keyOfTree(fstest.MapFS{"a.go": {Data: []byte("2")}})).NotTo(gomega.Equal(plain))
	g.Expect(keyOfTree(fstest.MapFS{"b.go": {Data: []byte("1")}})).NotTo(gomega.Equal(plain))
	g.Expect(keyOfTree(fstest.MapFS{"a.go": {Data: []byte("1")}, "a_test.go": {}})).To(gomega.Equal(plain))

	_, err := keyOf(func(k key) error { return k.program("tool", "/does/not/exist") })
	g.Expect(err).To(gomega.MatchError(fs.ErrNotExist))
}

// TestEmbeddedFilesAgree: the hand-written lists name things that are there.
func TestEmbeddedFilesAgree(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	modules, err := baseFiles.ReadFile("base/modules.txt")
	g.Expect(err).NotTo(gomega.HaveOccurred())
	drivers, err := initrdFiles.ReadFile("initrd/drivers.txt")
	g.Expect(err).NotTo(gomega.HaveOccurred())

	for _, driver := range lines(string(drivers)) {
		g.Expect(lines(string(modules))).To(gomega.ContainElement(driver), "the base tree keeps only listed modules")
	}

	exclude, err := baseFiles.ReadFile("base/exclude.txt")
	g.Expect(err).NotTo(gomega.HaveOccurred())

	for _, pattern := range lines(string(exclude)) {
		_, err := path.Match(pattern, "x")
		g.Expect(err).NotTo(gomega.HaveOccurred(), "pattern %q", pattern)
		g.Expect(pattern).NotTo(gomega.HavePrefix("/"))
	}

	wants, err := baseFiles.ReadFile("base/wants.txt")
	g.Expect(err).NotTo(gomega.HaveOccurred())

	for _, line := range lines(string(wants)) {
		g.Expect(strings.Fields(line)).To(gomega.HaveLen(2), "wants.txt: %q", line)
	}
}

func TestWantsOfMissingUnitAreRefused(t *testing.T) {
	t.Parallel()

	err := tree{}.addWants()
	gomega.NewWithT(t).Expect(err).To(gomega.MatchError(errNoUnit))
}

// TestState: what a machine must find on its first persistent root, and that added files belong to root.
func TestState(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	base, extra := t.TempDir(), t.TempDir()
	for name, data := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/machine-id": "secret\n", "etc/ssh/ssh_host_rsa_key": "key",
		"etc/systemd/system/apt-daily.timer": "", "etc/fstab": "wrong",
	} {
		g.Expect(os.MkdirAll(filepath.Join(base, filepath.Dir(name)), 0o755)).To(gomega.Succeed())
		g.Expect(os.WriteFile(filepath.Join(base, name), []byte(data), 0o644)).To(gomega.Succeed())
	}

	g.Expect(os.MkdirAll(filepath.Join(extra, "opt/stayput/bin"), 0o755)).To(gomega.Succeed())
	g.Expect(os.WriteFile(filepath.Join(extra, "opt/stayput/bin/agent"), []byte("agent"), 0o755)).To(gomega.Succeed())
	g.Expect(os.Chown(filepath.Join(extra, "opt/stayput/bin/agent"), 12, 34)).To(gomega.Succeed())

	files, err := stateTree(base, Inputs{StateDir: extra})
	g.Expect(err).NotTo(gomega.HaveOccurred())

	g.Expect(files).To(gomega.HaveKey("etc/passwd"))
	g.Expect(files["etc/machine-id"].size).To(gomega.BeZero())
	g.Expect(files).NotTo(gomega.HaveKey("etc/ssh/ssh_host_rsa_key"))
	g.Expect(files).NotTo(gomega.HaveKey("etc/systemd/system/apt-daily.timer"))
	g.Expect(string(files["etc/fstab"].data)).To(gomega.ContainSubstring("x-systemd.growfs"))
	g.Expect(files["bin"].link).To(gomega.Equal("usr/bin"))
	g.Expect(files["tmp"].mode & fs.ModeSticky).NotTo(gomega.BeZero())

	agent := files["opt/stayput/bin/agent"]
	g.Expect([]int{agent.uid, agent.gid}).To(gomega.Equal([]int{0, 0}))
	g.Expect(agent.mode.Perm()).To(gomega.Equal(fs.FileMode(0o755)))

	for name := range files {
		g.Expect(name == "usr" || !strings.HasPrefix(name, "usr/")).To(gomega.BeTrue(), "%s is in the slot", name)
	}
}

// TestMissingLibraryIsRefused with a real dynamic program, made by hand.
func TestMissingLibraryIsRefused(t *testing.T) {
	t.Parallel()
	g := gomega.NewWithT(t)

	files := tree{}
	files.addFile("bin/script", 0o755, "#!/bin/sh\n")
	files.addFile("bin/tool", 0o755, string(dynamicELF(t, "libneeded.so.1")))
	g.Expect(files.checkLibraries()).To(gomega.MatchError(errLibrary))

	files.addFile("lib/libneeded.so.1", 0o644, "")
	g.Expect(files.checkLibraries()).To(gomega.Succeed())
}

// dynamicELF makes the smallest ELF file whose dynamic section needs a library.
func dynamicELF(t *testing.T, library string) []byte {
	t.Helper()

	const headerSize, sectionSize, dynamicSize = 64, 64, 32

	names := append(append([]byte{0}, library...), 0)
	sections := uint64(headerSize + len(names) + dynamicSize)

	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shoff: sections, Ehsize: headerSize, Shentsize: sectionSize, Shnum: 3, Shstrndx: 1,
	}
	dynamic := []elf.Dyn64{{Tag: int64(elf.DT_NEEDED), Val: 1}, {Tag: int64(elf.DT_NULL)}}
	table := []elf.Section64{
		{},
		{Type: uint32(elf.SHT_STRTAB), Off: headerSize, Size: uint64(len(names))},
		{
			Type: uint32(elf.SHT_DYNAMIC), Off: uint64(headerSize + len(names)), Size: dynamicSize, Link: 1,
			Entsize: dynamicSize / 2,
		},
	}

	data := encode(t, nil, header)
	data = append(data, names...)
	data = encode(t, data, dynamic)

	return encode(t, data, table)
}

func encode(t *testing.T, data []byte, value any) []byte {
	t.Helper()

	data, err := binary.Append(data, binary.LittleEndian, value)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

func TestMissingRequiredFileIsRefused(t *testing.T) {
	t.Parallel()
	gomega.NewWithT(t).Expect(tree{}.checkRequired()).To(gomega.MatchError(errRequired))
}
