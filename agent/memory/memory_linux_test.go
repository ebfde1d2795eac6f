package memory_test

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/agent/memory"
)

// The program goes on to work, and less of its file is resident.
func TestRelease(t *testing.T) {
	before := residentFile(t)

	if err := memory.Release(); err != nil {
		t.Fatal(err)
	}

	after := residentFile(t)
	t.Logf("%d KiB of files were resident before and %d after", before, after)

	if after > before*3/4 {
		t.Error("hardly anything was given back")
	}
}

// residentFile is RssFile of /proc/self/status in KiB.
func residentFile(t *testing.T) int {
	t.Helper()

	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}

	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "RssFile:"); ok {
			size, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
			if err != nil {
				t.Fatal(err)
			}

			return size
		}
	}

	t.Fatal("there is no RssFile in /proc/self/status")

	return 0
}
