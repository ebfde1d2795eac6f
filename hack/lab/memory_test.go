package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stayput-dev/stayput/test/lab/machine"
)

func TestKibibytes(t *testing.T) {
	t.Parallel()

	values, err := kibibytes("Name:\tx\nVmHWM:\t   53820 kB\nVmRSS:\t   32656 kB\n", "VmRSS", "VmHWM")
	if err != nil || values[0] != 32656 || values[1] != 53820 {
		t.Errorf("got %v, %v", values, err)
	}

	if _, err := kibibytes("Name:\tx\n", "VmHWM"); !errors.Is(err, errStatus) {
		t.Errorf("got %v, want %v", err, errStatus)
	}

	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}

	if values, err := kibibytes(string(own), "VmHWM", "VmRSS", "RssAnon"); err != nil || values[0] < values[1] || values[1] <= values[2] {
		t.Errorf("this program: got %v, %v", values, err)
	}
}

// looked is a machine that fails in this order, nil for an answer, and after it always.
func looked(t *testing.T, failures ...error) *memory {
	t.Helper()

	return &memory{report: t.Logf, ssh: func(context.Context, string) (string, error) {
		if len(failures) == 0 {
			return "", fmt.Errorf("%w: once too often", machine.ErrRemote)
		}

		failure := failures[0]
		failures = failures[1:]

		return statusOfAgent, failure
	}}
}

const statusOfAgent = "VmHWM:\t 500 kB\nVmRSS:\t 400 kB\nRssAnon:\t 300 kB\n"

// An agent that restarts has another number the next time; twice in a row is more than a restart.
func TestSampleOfAnAgentThatRestarts(t *testing.T) {
	t.Parallel()

	restarted := fmt.Errorf("%w: no such process", machine.ErrRemote)
	measured := looked(t, nil, restarted, nil, restarted, restarted, nil)

	for number, want := range []error{nil, nil, machine.ErrRemote, nil} {
		if err := measured.sample(t.Context(), "idle", 0); !errors.Is(err, want) {
			t.Errorf("sample %d: got %v, want %v", number+1, err, want)
		}
	}

	if len(measured.rows) != 1 || measured.rows[0].peak != 500 {
		t.Errorf("it has %d rows", len(measured.rows))
	}
}

func TestWhatWasMeasuredBeforeAnError(t *testing.T) {
	t.Parallel()

	measured := looked(t, nil)
	if err := measured.sample(t.Context(), "version 1: writing", 0); err != nil {
		t.Fatal(err)
	}

	var out strings.Builder

	err := measured.measure(t.Context(), nil, &out)
	if !errors.Is(err, machine.ErrRemote) || !strings.Contains(out.String(), "version 1: writing  0        500 kB") {
		t.Errorf("got %v, it printed\n%s", err, out.String())
	}
}
