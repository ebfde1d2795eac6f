package main

import (
	"errors"
	"os"
	"testing"
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
