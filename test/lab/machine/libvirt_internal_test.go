package machine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The lab that started libvirtd stops it when it sees no machine; another one may just be about to make its first.
func TestALibvirtdThatAnotherStoppedIsStartedAgain(t *testing.T) {
	dir := t.TempDir()
	// It cannot connect until it is asked for its version, as ensure does before it starts anything.
	program := `#!/bin/sh
case "$*" in
*version) : >"` + dir + `/started" ;;
*) test -e "` + dir + `/started" || { echo "error: ` + noLibvirtd + `" >&2; exit 1; }; echo a-machine ;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "virsh"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}

	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))

	domains, err := (&Libvirt{dir: dir}).Domains(t.Context())
	if err != nil || !slices.Equal(domains, []string{"a-machine"}) {
		t.Errorf("domains %q: %v", domains, err)
	}
}
