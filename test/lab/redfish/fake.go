package redfish

import (
	"os"
	"testing"
)

// StartFake starts the emulator for one test, with machines of the fake driver, and ends it with the test. It fails the
// test when it cannot. What the installer says, the first time, goes to the test's standard error.
func StartFake(t *testing.T, username, password string, machines ...FakeSystem) *Emulator {
	t.Helper()
	emulator, err := Start(t.Context(), Options{
		StateDir: t.TempDir(), Username: username, Password: password, Fake: machines, Progress: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := emulator.Stop(); err != nil {
			t.Error(err)
		}
	})

	return emulator
}
