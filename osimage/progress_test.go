package osimage_test

import (
	"bytes"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stayput-dev/stayput/osimage"
)

// told is all progress of one Write.
type told []osimage.Progress

func (p *told) take(progress osimage.Progress) { *p = append(*p, progress) }

// check makes sure that the numbers only grow and the stages come in their order, and returns the stages.
func (p *told) check(t *testing.T) []osimage.Stage {
	t.Helper()

	var (
		stages []osimage.Stage
		before osimage.Progress
	)

	for number, now := range *p {
		if now.Stage == "" {
			t.Fatalf("number %d: %+v is of no stage", number, now)
		}

		if len(stages) == 0 || stages[len(stages)-1] != now.Stage {
			stages = append(stages, now.Stage)
		}

		if now.Surveyed < before.Surveyed || now.Fetched < before.Fetched || now.Written < before.Written ||
			now.Verified < before.Verified || now.Surveyed > now.ToSurvey || (now.ToFetch > 0 && now.Fetched > now.ToFetch) ||
			now.Verified > now.Written || now.Written > now.Total {
			t.Fatalf("number %d: %+v came after %+v", number, now, before)
		}

		before = now
	}

	return stages
}

func (p *told) last() osimage.Progress { return (*p)[len(*p)-1] }

func TestProgressOfAnUpdate(t *testing.T) {
	t.Parallel()

	old, _ := update()

	for name, test := range map[string]struct {
		there []byte
		seeds bool
		// missing is how much less the seed has than was thought.
		missing int64
		// survey is what is read before anything is fetched.
		survey int64
	}{
		"from the running slot":   {nil, true, 0, usrSize},
		"from a seed that is cut": {nil, true, 1 << 20, usrSize + 1<<20},
		"from the spare slot":     {old, false, 0, usrSize},
		"from both":               {append(slices.Clone(old), randomBytes(9, 3<<20)...), true, 0, 2*usrSize + 3<<20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := newDelta(t)
			if _, err := d.target.WriteAt(test.there, 0); err != nil {
				t.Fatal(err)
			}

			var all told

			options := osimage.WriteOptions{Resume: true, SyncEvery: 1 << 20, Progress: all.take}
			if test.seeds {
				d.seed.Size += test.missing
				options.Seeds = []osimage.Seed{d.seed}
			}

			d.check(t, osimage.Write(background(t), d.image, osimage.RoleUSR, d.target, options))

			if got := all.check(t); !slices.Equal(got, []osimage.Stage{osimage.Surveying, osimage.Writing, osimage.Verifying}) {
				t.Errorf("stages %v", got)
			}

			last, size := all.last(), int64(len(d.next))
			if last.Surveyed != test.survey || last.ToSurvey != test.survey {
				t.Errorf("surveyed %d of %d, want all of %d", last.Surveyed, last.ToSurvey, test.survey)
			}

			if plan := last.Plan; last.Fetched != d.received.Load() || last.ToFetch != plan.Fetch+plan.Index ||
				last.Fetched != last.ToFetch || last.Reused != plan.Kept+plan.Reused || last.Reused < 4<<20 {
				t.Errorf("received %d bytes, planned %+v, told %+v", d.received.Load(), plan, last)
			}

			if last.Written != size || last.Verified != size || last.Total != size {
				t.Errorf("at the end %+v, want %d bytes", last, size)
			}
		})
	}
}

// slowSeed gives bytes only when it is let.
type slowSeed struct {
	*bytes.Reader

	let chan struct{}
}

func (s *slowSeed) ReadAt(buffer []byte, offset int64) (int, error) {
	<-s.let

	return s.Reader.ReadAt(buffer, offset)
}

// While the seeds are read, which takes long, each step of that is told, and nothing is written.
func TestProgressOfASlowSurvey(t *testing.T) {
	t.Parallel()

	old, _ := update()
	d := newDelta(t)
	seed := &slowSeed{Reader: bytes.NewReader(old), let: make(chan struct{})}
	d.seed.Reader = seed

	came := make(chan osimage.Progress, 1<<10)
	ended := make(chan error, 1)

	go func() {
		ended <- osimage.Write(background(t), d.image, osimage.RoleUSR, d.target, osimage.WriteOptions{
			Seeds: []osimage.Seed{d.seed}, Progress: func(progress osimage.Progress) { came <- progress },
		})
	}()

	first := <-came
	if first.Stage != osimage.Surveying || first.Surveyed != 0 || first.ToSurvey != usrSize || first.ToFetch != 0 {
		t.Errorf("at first %+v", first)
	}

	seed.let <- struct{}{}

	second := <-came
	if second.Stage != osimage.Surveying || second.Surveyed == 0 || second.Surveyed > usrSize/2 || second.Written != 0 {
		t.Errorf("after one read %+v", second)
	}

	close(seed.let)
	d.check(t, <-ended)
}

func TestProgressOfAWholeLayer(t *testing.T) {
	t.Parallel()

	image := newFaults(t).push(t, someContents())
	content, _ := image.Config().Content(osimage.RoleUSR)

	var all told

	err := osimage.Write(background(t), image, osimage.RoleUSR, openTarget(t, 0), osimage.WriteOptions{Progress: all.take})
	if err != nil {
		t.Fatal(err)
	}

	if got := all.check(t); !slices.Equal(got, []osimage.Stage{osimage.Writing, osimage.Verifying}) {
		t.Errorf("stages %v", got)
	}

	if last := all.last(); last.Fetched != content.Size || last.ToFetch != content.Size || last.Reused != 0 || last.ToSurvey != 0 {
		t.Errorf("of a layer of %d bytes %+v", content.Size, last)
	}
}

// What was written and is wrong is written once more, and the numbers say so.
func TestProgressOfWritingOnceMore(t *testing.T) {
	t.Parallel()

	var before, again osimage.Progress

	image := newFaults(t).push(t, someContents())
	err := osimage.Write(background(t), image, osimage.RoleUSR, newLyingMedium(), osimage.WriteOptions{
		Progress: func(progress osimage.Progress) {
			if progress.Written < before.Written {
				again = progress
			}

			before = progress
		},
	})
	if err == nil || again.Stage != osimage.Writing || again.Fetched == 0 || again.ToFetch != 2*again.Fetched {
		t.Errorf("error %v; told %+v when it began anew", err, again)
	}
}

func TestProgressOfASeededReader(t *testing.T) {
	t.Parallel()

	old, next := update()

	for name, test := range map[string]struct {
		next     []byte
		noRanges bool
		stages   []osimage.Stage
	}{
		"most of it is there":           {next, false, []osimage.Stage{osimage.Surveying, osimage.Writing}},
		"nothing of it is there":        {randomBytes(99, usrSize), false, []osimage.Stage{osimage.Surveying, osimage.Writing}},
		"a registry that has no ranges": {next, true, []osimage.Stage{osimage.Surveying, osimage.Writing}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			d := deltaOf(t, old, test.next)
			d.registry.set(func(f *faults) { f.noRanges = test.noRanges })

			var all told

			reader, err := d.image.OpenSeeded(background(t), osimage.RoleUSR, []osimage.Seed{d.seed}, all.take)
			if err != nil {
				t.Fatal(err)
			}

			if _, err := io.Copy(io.Discard, reader); err != nil {
				t.Fatal(err)
			}

			if err := reader.Close(); err != nil {
				t.Fatal(err)
			}

			if got := all.check(t); !slices.Equal(got, test.stages) {
				t.Errorf("stages %v, want %v", got, test.stages)
			}

			if last := all.last(); last.Written != int64(len(test.next)) || last.Fetched != last.ToFetch || last.Fetched == 0 {
				t.Errorf("at the end %+v", last)
			}
		})
	}
}

func TestProgressInWords(t *testing.T) {
	t.Parallel()

	const mebibyte = 1 << 20

	usr := osimage.Progress{
		Stage: osimage.Writing, Fetched: 3 * mebibyte, ToFetch: 12 * mebibyte, Written: 30 * mebibyte, Verified: 20 * mebibyte,
		Total: 40 * mebibyte, Reused: 20 * mebibyte,
	}
	verity := osimage.Progress{Stage: osimage.Surveying, Surveyed: mebibyte, ToSurvey: 4 * mebibyte, Total: 10 * mebibyte}
	both := usr.Plus(verity)

	for _, test := range []struct {
		progress osimage.Progress
		want     string
	}{
		{osimage.Progress{}, "0.0 of 0.0 MiB (100%)"},
		{usr, "30.0 of 40.0 MiB (75%), fetched 3.0 of 12.0 MiB"},
		{osimage.Progress{Stage: osimage.Writing, Written: 1, Total: 3}, "0.0 of 0.0 MiB (33%)"},
		{osimage.Progress{Stage: osimage.Verifying, Verified: mebibyte, Total: 4 * mebibyte}, "reading back, 1.0 of 4.0 MiB (25%)"},
		{both, "reading what is there, 1.0 of 4.0 MiB (25%)"},
	} {
		if got := test.progress.String(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}

	if both.Written != usr.Written || both.Total != 50*mebibyte || both.ToFetch != usr.ToFetch || both.Reused != usr.Reused {
		t.Errorf("the sum is %+v", both)
	}
}

func TestPace(t *testing.T) {
	t.Parallel()

	const mebibyte = 1 << 20

	// A step is progress at a time after the start, both in seconds and MiB.
	type step struct {
		at    float64
		done  int
		stage osimage.Stage
	}

	steady := func(upTo int) []step {
		steps := make([]step, 0, upTo+1)
		for second := range upTo + 1 {
			steps = append(steps, step{float64(second), second * 10, osimage.Writing})
		}

		return steps
	}

	// Marks are at least a second apart: the last half second is in none.
	halves := make([]step, 0, 42)
	for half := range cap(halves) {
		halves = append(halves, step{float64(half) / 2, half * 5, osimage.Writing})
	}

	for name, test := range map[string]struct {
		steps []step
		// asked is when it is asked.
		asked float64
		want  string
	}{
		"nothing yet":       {nil, 10, ""},
		"too early":         {steady(1), 1, ""},
		"steady":            {steady(20), 20, ", 10.0 MiB/s, 1m20s left"},
		"steady for long":   {steady(90), 90, ", 10.0 MiB/s, 10s left"},
		"one jump":          {[]step{{0, 0, osimage.Writing}, {4, 400, osimage.Writing}}, 4, ", 100.0 MiB/s, 6s left"},
		"it slows down":     {steady(20), 35, ", 5.0 MiB/s, 2m40s left"},
		"it stalls":         {steady(20), 60, ""},
		"half steps":        {halves, 20.5, ", 10.0 MiB/s, 1m20s left"},
		"half steps end":    {halves, 50.25, ", 0.2 MiB/s, 1h20m10s left"},
		"half steps stall":  {halves, 60, ""},
		"told again":        {append(slices.Clone(halves), step{20.75, 205, osimage.Writing}), 50.5, ""},
		"what was kept":     {[]step{{0, 900, osimage.Writing}, {10, 910, osimage.Writing}}, 10, ", 1.0 MiB/s, 1m30s left"},
		"all is done":       {append(steady(20), step{21, 1000, osimage.Writing}), 21, ", 47.6 MiB/s"},
		"hardly anything":   {[]step{{0, 0, osimage.Verifying}, {5, 995, osimage.Verifying}}, 5, ", 199.0 MiB/s, 1s left"},
		"written once more": {append(steady(20), step{21, 0, osimage.Writing}, step{24, 30, osimage.Writing}), 24, ", 10.0 MiB/s, 1m37s left"},
		"another stage":     {append(steady(20), step{21, 500, osimage.Surveying}), 22, ""},
		"a clock that is set back": {
			append(steady(20), step{-3600, 200, osimage.Writing}, step{-3598, 220, osimage.Writing}), -3598, ", 10.0 MiB/s, 1m18s left",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var pace osimage.Pace

			start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
			at := func(second float64) time.Time { return start.Add(time.Duration(second * float64(time.Second))) }

			for _, step := range test.steps {
				done := int64(step.done) * mebibyte
				pace.Note(at(step.at), osimage.Progress{
					Stage: step.stage, Written: done, Verified: done, Surveyed: done, Total: 1000 * mebibyte, ToSurvey: 1000 * mebibyte,
				})
			}

			if got := pace.Text(at(test.asked)); got != test.want {
				t.Errorf("it says %q, want %q", got, test.want)
			}
		})
	}
}

// A transfer of a byte a day has no end that would fit.
func TestPaceOfSomethingSlow(t *testing.T) {
	t.Parallel()

	var pace osimage.Pace

	start := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	pace.Note(start, osimage.Progress{Stage: osimage.Writing, Total: 1 << 60})
	pace.Note(start.Add(25*time.Second), osimage.Progress{Stage: osimage.Writing, Written: 1, Total: 1 << 60})

	if left := pace.Left(start.Add(25 * time.Second)); left != 0 {
		t.Errorf("%s left", left)
	}
}
