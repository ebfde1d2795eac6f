package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	testclock "k8s.io/utils/clock/testing"
)

func TestATerminalKeepsTheBlockBelowTheLines(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	screen := NewScreen(&out, func() int { return 10 }, testclock.NewFakePassiveClock(start()))
	for _, tt := range []struct {
		do   func()
		want string
	}{
		{func() { screen.Text("first") }, "first\n"},
		{func() { screen.Pin("one\ntwo\n") }, "one\ntwo\n"},
		{func() { screen.Pin("a line that is too long") }, "\x1b[2A\x1b[Ja line th\n"},
		{func() { screen.Linef("kept") }, "\x1b[1A\x1b[J[   0.0s] kept\na line th\n"},
		{func() { screen.Pin("") }, "\x1b[1A\x1b[J"},
		{func() { screen.Pin("") }, ""},
		{func() { screen.Text("last\n") }, "last\n"},
	} {
		out.Reset()
		tt.do()

		if out.String() != tt.want {
			t.Errorf("wrote %q, want %q", out.String(), tt.want)
		}
	}
}

func TestAPlainOutputShowsTheBlockOnlyAfterSilence(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	now := testclock.NewFakePassiveClock(start())
	screen := NewScreen(&out, nil, now)

	for _, tt := range []struct {
		passes time.Duration
		do     func()
		want   string
	}{
		{time.Second, func() { screen.Pin("table") }, ""},
		{28 * time.Second, func() { screen.Linef("a change") }, "[  29.0s] a change\n"},
		{29 * time.Second, func() { screen.Pin("table") }, ""},
		{time.Second, func() { screen.Pin("table") }, "table\n"},
		{time.Second, func() { screen.Pin("table") }, ""},
		{time.Minute, func() { screen.Pin("") }, ""},
	} {
		out.Reset()
		now.SetTime(now.Now().Add(tt.passes))
		tt.do()

		if out.String() != tt.want {
			t.Errorf("at %s: wrote %q, want %q", now.Since(start()), out.String(), tt.want)
		}
	}
}

// safeBuilder is written by the part and read by the test.
type safeBuilder struct {
	mu   sync.Mutex
	text strings.Builder
	seen chan string // each write, when there is one who waits
}

func (b *safeBuilder) Write(data []byte) (int, error) {
	b.mu.Lock()
	b.text.Write(data)
	b.mu.Unlock()

	if b.seen != nil && strings.Contains(string(data), "…") {
		b.seen <- string(data)
	}

	return len(data), nil
}

func TestAPartShowsThatItIsAtWorkAndKeepsItsTime(t *testing.T) {
	t.Parallel()

	now := testclock.NewFakeClock(start())
	out := &safeBuilder{seen: make(chan string)}
	file := filepath.Join(t.TempDir(), "times.json")

	if err := LoadTimes(file).Keep("building", 90*time.Second); err != nil {
		t.Fatal(err)
	}

	show := &Show{Screen: NewScreen(out, func() int { return 80 }, now), Times: LoadTimes(file), Clock: now}
	finish, shown := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)

	go func() {
		done <- show.Run(t.Context(), Part{Name: "building", Telling: "It is built."},
			func(_ context.Context, pin func(string)) error {
				pin("table\n")
				close(shown)
				<-finish

				return nil
			})
	}()

	<-shown

	NewWithT(t).Eventually(now.HasWaiters).Should(BeTrue())
	now.Step(7 * time.Second)

	if got := <-out.seen; got != "table\n… building: 7 s, last time 90 s\n" {
		t.Errorf("shows %q", got)
	}

	close(finish)

	if err := <-done; err != nil {
		t.Fatal(err)
	}

	out.mu.Lock()
	defer out.mu.Unlock()

	for _, want := range []string{"\n== building (last time 90 s)\nIt is built.\n", "building: done in 7 s\n"} {
		if !strings.Contains(out.text.String(), want) {
			t.Errorf("lacks %q:\n%s", want, out.text.String())
		}
	}

	if last, known := LoadTimes(file).Last("building"); !known || last != 7*time.Second {
		t.Errorf("kept %s, %v", last, known)
	}
}

func TestAPartThatFailsIsNamedAndItsTimeIsNotKept(t *testing.T) {
	t.Parallel()

	now := testclock.NewFakeClock(start())
	show := &Show{
		Screen: NewScreen(&safeBuilder{}, nil, now), Times: LoadTimes(filepath.Join(t.TempDir(), "times.json")), Clock: now,
	}
	broken := errors.New("no space") //nolint:err113 // any error

	err := show.Run(t.Context(), Part{Name: "building"}, func(context.Context, func(string)) error { return broken })
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "building (after 0 s)") {
		t.Errorf("got %v", err)
	}

	if _, known := show.Times.Last("building"); known {
		t.Error("the time of a part that failed was kept")
	}
}

func TestBrokenTimesAreNone(t *testing.T) {
	t.Parallel()

	for _, text := range []string{"", "{", "null", `["a"]`} {
		file := filepath.Join(t.TempDir(), "times.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		times := LoadTimes(file)
		if _, known := times.Last("building"); known {
			t.Errorf("%q has a time", text)
		}

		if err := times.Keep("building", time.Second); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
