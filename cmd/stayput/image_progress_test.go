package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/vbauerster/mpb/v8"

	"github.com/stayput-dev/stayput/osimage"
)

func TestPlainProgress(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	now := time.Unix(1000, 0)
	shown := &plainProgress{out: &out, now: func() time.Time { return now }, parts: map[string]*plainPart{}}

	shown.show("usr", 0, 10<<20)

	for i := range int64(10) {
		now = now.Add(time.Second)
		shown.show("usr", (i+1)<<20, 10<<20)
	}

	shown.show("usr", 10<<20, 10<<20)
	shown.end()

	const want = "usr: 0.0 of 10.0 MiB (0%)\nusr: 5.0 of 10.0 MiB (50%), 1.0 MiB/s, 5s left\n" +
		"usr: 10.0 of 10.0 MiB (100%), 1.0 MiB/s\n"

	if out.String() != want {
		t.Errorf("it printed\n%swant\n%s", out.String(), want)
	}
}

// planned is what is said of the plan of ofAnUpdate.
const planned = "Fetching 4194304 of the layer's 9437184 bytes, in requests: 3; of the content's 20971520 bytes 5242880 are there " +
	"already, 6291456 are copied from older contents"

// ofAnUpdate shows an update that reads 40 MiB for 8 s and writes 20 MiB for 20 s, a step a second.
func ofAnUpdate(shown progress, step func()) {
	now := osimage.Progress{Stage: osimage.Surveying, ToSurvey: 40 << 20, Total: 20 << 20}
	tell := tellPlans(shown, osimage.RoleUSR, osimage.Content{Size: 9 << 20, RawSize: 20 << 20})
	tell(now)

	for range 8 {
		step()

		now.Surveyed += 5 << 20
		tell(now)
	}

	now.Plan = &osimage.Planned{Fetch: 4 << 20, Requests: 3, Index: 1000, Kept: 5 << 20, Reused: 6 << 20}
	now.Fetched, now.ToFetch = 1000, 4<<20+1000
	tell(now)

	for now.Stage = osimage.Writing; now.Written < now.Total; {
		step()

		now.Written += 1 << 20
		now.Fetched = now.ToFetch * now.Written / now.Total
		tell(now)
	}

	for now.Stage = osimage.Verifying; now.Verified < now.Total; {
		step()

		now.Verified += 4 << 20
		tell(now)
	}
}

func TestPlainProgressOfAnUpdate(t *testing.T) {
	t.Parallel()

	var out bytes.Buffer

	now := time.Unix(1000, 0)
	shown := &plainProgress{out: &out, now: func() time.Time { return now }, parts: map[string]*plainPart{}}

	ofAnUpdate(shown, func() { now = now.Add(time.Second) })
	shown.end()

	const want = `usr: reading what is there, 0.0 of 40.0 MiB (0%)
usr: reading what is there, 25.0 of 40.0 MiB (62%), 5.0 MiB/s, 3s left
usr: reading what is there, 40.0 of 40.0 MiB (100%), 5.0 MiB/s
` + planned + `
usr: 1.0 of 20.0 MiB (5%), fetched 0.2 of 4.0 MiB
usr: 6.0 of 20.0 MiB (30%), fetched 1.2 of 4.0 MiB, 1.0 MiB/s, 14s left
usr: 11.0 of 20.0 MiB (55%), fetched 2.2 of 4.0 MiB, 1.0 MiB/s, 9s left
usr: 16.0 of 20.0 MiB (80%), fetched 3.2 of 4.0 MiB, 1.0 MiB/s, 4s left
usr: 20.0 of 20.0 MiB (100%), fetched 4.0 of 4.0 MiB, 1.0 MiB/s
usr: reading back, 20.0 of 20.0 MiB (100%), 4.0 MiB/s
`

	if out.String() != want {
		t.Errorf("it printed\n%swant\n%s", out.String(), want)
	}
}

// screen keeps what is drawn, and gives each drawing out.
type screen struct {
	strings.Builder

	drawn chan string
}

func (s *screen) Write(data []byte) (int, error) {
	s.drawn <- string(data)

	return s.Builder.Write(data)
}

func TestBarsOfAnUpdate(t *testing.T) {
	t.Parallel()

	out := &screen{drawn: make(chan string, 100)}
	now := time.Unix(1000, 0)
	draw := make(chan any)
	shown := &barProgress{
		now: func() time.Time { return now }, bars: map[string]*bar{},
		container: mpb.New(mpb.WithOutput(out), mpb.WithManualRefresh(draw), mpb.WithWidth(80)),
	}
	steps := 0

	ofAnUpdate(shown, func() {
		if steps++; steps == 20 {
			draw <- now

			for frame := range out.drawn {
				if strings.Contains(frame, "20.0 MiB") {
					break
				}
			}
		}

		now = now.Add(time.Second)
	})
	shown.end()

	for _, want := range []string{
		"usr: reading ", "40.0 MiB/40.0 MiB, done", "11.0 MiB/20.0 MiB, 2.2/4.0 MiB fetched, 1.0 MiB/s, 9s left",
		planned, "20.0 MiB/20.0 MiB, done",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("nothing of %q in\n%s", want, out.String())
		}
	}
}
