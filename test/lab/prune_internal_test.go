package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/test/lab/tools"
)

func TestPruneKeepsWhatIsUsed(t *testing.T) {
	t.Parallel()

	cache, now := t.TempDir(), time.Now()

	for name, age := range map[string]time.Duration{
		"osbuild-old": 4 * 24 * time.Hour, "oci-old": 4 * 24 * time.Hour, "oci-old.disk": 4 * 24 * time.Hour,
		"oci-used": 4 * 24 * time.Hour, "osbuild-new": time.Hour, "osbuild.lock": 400 * 24 * time.Hour,
		"kubernetes-v1": 400 * 24 * time.Hour,
	} {
		path := filepath.Join(cache, name)

		if err := os.MkdirAll(filepath.Join(path, "blobs"), 0o700); err != nil {
			t.Fatal(err)
		}

		if err := os.Chtimes(path, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}

	if err := tools.MarkUsed(filepath.Join(cache, "oci-used")); err != nil {
		t.Fatal(err)
	}

	if err := prune(cache, now); err != nil {
		t.Fatal(err)
	}

	for name, want := range map[string]bool{
		"osbuild-old": false, "oci-old": false, "oci-old.disk": false,
		"oci-used": true, "osbuild-new": true, "osbuild.lock": true, "kubernetes-v1": true,
	} {
		if _, err := os.Stat(filepath.Join(cache, name)); (err == nil) != want {
			t.Errorf("%s: there is %v, want %v", name, err == nil, want)
		}
	}
}
