package bmo

import (
	"slices"
	"testing"
)

func TestAccount(t *testing.T) {
	t.Parallel()
	log := `{"level":"info","ts":1796026604.2,"logger":"controllers.BareMetalHost","msg":"start","baremetalhost":{"name":"h1"}}
{"level":"info","ts":"2026-11-30T08:16:44Z","logger":"provisioner.fixture","msg":"updating hardware state","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:44Z","logger":"provisioner.fixture","msg":"ensuring host is powered off","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:44Z","logger":"provisioner.fixture","msg":"ensuring host is powered on","host":"h2"}
{"level":"info","ts":"2026-11-30T08:16:44Z","logger":"provisioner.fixture","msg":"changing status","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:44Z","logger":"provisioner.fixture","msg":"updating hardware state","host":"h1"}
a panic's line
{"level":"info","ts":"2026-11-30T08:16:45Z","logger":"provisioner.fixture","msg":"ensuring host is powered off","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:46Z","logger":"provisioner.fixture","msg":"ensuring host is powered on","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:46Z","logger":"provisioner.fixture","msg":"changing status","host":"h1"}
{"level":"info","ts":"2026-11-30T08:16:47Z","logger":"provisioner.fixture","msg":"updating hard`
	got := account([]byte(log), "h1")
	if got.Looks != 2 || !slices.Equal(got.Switches, []Switch{Off, On}) {
		t.Errorf("got %+v", got)
	}
	if other := account([]byte(log), "h2"); other.Looks != 0 || len(other.Switches) != 0 {
		t.Errorf("another host's: got %+v", other)
	}
}
