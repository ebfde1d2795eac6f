package demo

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/stayput-dev/stayput/api/v1alpha1"
)

func TestTheVersionsOfTheStoryFollowOneAnother(t *testing.T) {
	t.Parallel()

	runs := First

	story := Story(PaceOf(true))
	for index := range story {
		if story[index].From != runs {
			t.Errorf("%s begins with %s, but the chapter before ends with %s", story[index].Name, story[index].From, runs)
		}

		runs = story[index].Runs
	}

	if got := len(Variants(story)); got != len(story)+1 {
		t.Errorf("%d variants, want one a chapter and the first", got)
	}
}

// A machine is reset while it hangs only when the controller waits for less time than a chapter has.
func TestEachPaceLeavesTimeForTheReset(t *testing.T) {
	t.Parallel()

	for _, accelerated := range []bool{true, false} {
		pace := PaceOf(accelerated)
		if pace.Silent >= pace.Boot || pace.Silent+2*pace.Boot > pace.Limit {
			t.Errorf("accelerated %v: silent after %s, boot in %s, limit %s", accelerated, pace.Silent, pace.Boot, pace.Limit)
		}
	}
}

func TestAChapterIsGoodWhenAllOfItWasSeen(t *testing.T) {
	t.Parallel()

	update, panics, hang := chapters()
	for _, chapter := range []Chapter{update, panics, hang} {
		if err := chapter.Check(play(&chapter)); err != nil {
			t.Errorf("%s: %v", chapter.Name, err)
		}
	}
}

func TestWhatDidNotHappenIsFound(t *testing.T) {
	t.Parallel()

	update, panics, hang := chapters()
	attempt := func(r *Record) *v1alpha1.AttemptRecord { return &r.Last.Updates["node-1"].Status.History[0] }

	for name, tt := range map[string]struct {
		chapter Chapter
		change  func(*Record)
		says    string
	}{
		"nothing was observed": {update, func(r *Record) { r.Last = nil }, "any node"},
		"a node was not updated": {update, func(r *Record) {
			r.Last.Nodes["node-2"].Status.NodeInfo.OSImage = "Stayput lab OS 1.0.0"
		}, "node node-2 on OS 1.1.0"},
		"it ran the version before": {update, func(r *Record) { r.nodes["node-1"].os = "Stayput lab OS 1.1.0" }, "on OS 1.0.0 before"},
		"the slot is not committed": {update, func(r *Record) {
			r.Last.Updates["node-1"].Status.KnownGood.Version = "1.0.0"
		}, `"1.0.0" is good`},
		"no NodeUpdate":           {update, func(r *Record) { delete(r.Last.Updates, "node-2") }, "a NodeUpdate of node node-2"},
		"still cordoned":          {update, func(r *Record) { r.Last.Nodes["node-1"].Spec.Unschedulable = true }, "back in service"},
		"one was not tried":       {update, func(r *Record) { r.Last.Updates["node-2"].Status.History = nil }, "2 of 2 nodes; 1 tried"},
		"it ended otherwise":      {update, func(r *Record) { attempt(r).Phase = v1alpha1.PhaseRolledBack }, "it ended RolledBack"},
		"never rebooted":          {update, func(r *Record) { r.nodes["node-1"].rebooted = time.Time{} }, "rebooting and coming back"},
		"never out of service":    {update, func(r *Record) { r.nodes["node-2"].cordoned = time.Time{} }, "going out of service"},
		"the BMC had to help":     {update, reset("node-1", 1), "0 to 0 resets"},
		"a good release poisoned": {update, poison("sha256:1.1.0", "1.1.0"), "OS 1.1.0 not poisoned"},
		"not Ready": {update, func(r *Record) {
			r.Last.Pool.Status.Conditions[1].Status = metav1.ConditionFalse
		}, "Ready=true"},

		"not poisoned": {panics, func(r *Record) { r.Last.Pool.Status.Poisoned = nil }, "the digest of OS 1.2.0 poisoned"},
		"another digest poisoned": {panics, func(r *Record) {
			r.Last.Pool.Status.Poisoned = nil
			poison("sha256:other", "1.2.0")(r)
		}, "the digest of OS 1.2.0 poisoned"},
		"not halted": {panics, func(r *Record) { r.Last.Pool.Status.Conditions[0].Status = metav1.ConditionFalse }, "Halted=true"},
		"halted for an older spec": {panics, func(r *Record) {
			r.Last.Pool.Status.Conditions[0].ObservedGeneration = 0
		}, "Halted=true"},
		"fell back by another rung":  {panics, func(r *Record) { attempt(r).Rung = v1alpha1.RungBootGate }, "by rung BootGate"},
		"fell back with BMC's help":  {panics, reset("node-1", 1), "0 to 0 resets"},
		"stayed on the bad release":  {panics, func(r *Record) { r.Last.Updates["node-1"].Status.Running.Version = "1.2.0" }, `it runs "1.2.0"`},
		"a second node tried it too": {panics, tryAlso("node-2"), "1 of 2 nodes; 2 tried"},

		"the BMC did nothing":   {hang, reset("node-1", 0), "1 to 2 resets"},
		"an earlier reset":      {hang, func(r *Record) { r.Last.Updates["node-1"].Status.OutOfBand.Attempt = "older" }, "there were 0"},
		"the BMC acted forever": {hang, reset("node-1", 3), "there were 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			record := play(&tt.chapter)
			tt.change(record)

			err := tt.chapter.Check(record)
			if !errors.Is(err, ErrNotSeen) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want it to say %q", err, tt.says)
			}
		})
	}
}

func reset(node string, resets int32) func(*Record) {
	return func(r *Record) {
		update := r.Last.Updates[node]
		update.Status.OutOfBand = &v1alpha1.OutOfBandStatus{Attempt: update.Spec.Attempt, Resets: resets}
	}
}

func poison(digest, version string) func(*Record) {
	return func(r *Record) {
		r.Last.Pool.Status.Poisoned = append(r.Last.Pool.Status.Poisoned, v1alpha1.PoisonedRelease{Digest: digest, Version: version})
	}
}

func tryAlso(node string) func(*Record) {
	return func(r *Record) {
		r.Last.Updates[node].Status.History = r.Last.Updates["node-1"].Status.History
	}
}

func TestTheVerdictNeedsEveryChapter(t *testing.T) {
	t.Parallel()

	story := Story(PaceOf(false))
	all := func() []Told {
		told := make([]Told, 0, len(story))
		for index := range story {
			told = append(told, Told{Chapter: &story[index], Record: play(&story[index])})
		}

		return told
	}
	failed := errors.New("an invariant does not hold") //nolint:err113 // any error

	for name, tt := range map[string]struct {
		told func() []Told
		says string
	}{
		"all of it":                  {all, ""},
		"nothing":                    {func() []Told { return nil }, "Chapter 1: OS 1.1.0 for both machines: it was not reached"},
		"the last was not reached":   {func() []Told { return all()[:2] }, "Chapter 3: OS 1.3.0 hangs: it was not reached"},
		"one failed":                 {func() []Told { told := all(); told[1].Err = failed; return told }, "an invariant does not hold"},
		"one was told, but not seen": {func() []Told { told := all(); told[2].Record = &Record{}; return told }, "any node"},
		"one told twice":             {func() []Told { told := all(); told[1] = told[0]; return told }, "another was told in its place"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := Verdict(story, tt.told())
			if tt.says == "" {
				if err != nil {
					t.Error(err)
				}

				return
			}

			if !errors.Is(err, ErrStory) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want it to say %q", err, tt.says)
			}
		})
	}
}

func TestTheSummarySaysWhatHappenedAndWhatDidNot(t *testing.T) {
	t.Parallel()

	story := Story(PaceOf(false))
	told := []Told{
		{Chapter: &story[0], Record: play(&story[0])},
		{Chapter: &story[1], Record: play(&story[1]), Err: errors.New("broken")}, //nolint:err113 // any error
	}

	var out strings.Builder
	if err := WriteSummary(&out, story, told, 754*time.Second); err != nil {
		t.Fatal(err)
	}

	words := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"Summary (12m34s in all)",
		"yes: both machines were updated in place, one after the other",
		"node-1 1.1.0 Succeeded (Committed) 1.1.0 126 s 105 s 0",
		"node-2 1.1.0 Succeeded (Committed) 1.1.0 126 s 105 s 0",
		"NO: it did not happen as promised",
		"node-1 1.2.0 RolledBack (KernelOrInitrdFailed) by rung BootTries 1.1.0 126 s 105 s 0",
		"node-1: what was seen", "halted: release 1.2.0 failed",
		"Chapter 3: OS 1.3.0 hangs not reached", "Resets through BMCs in all: 0",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("the summary lacks %q:\n%s", want, out.String())
		}
	}

	told = append(told[:1], Told{Chapter: &story[1], Record: play(&story[1])}, Told{Chapter: &story[2], Record: play(&story[2])})

	out.Reset()

	if err := WriteSummary(&out, story, told, 0); err != nil || !strings.Contains(out.String(), "in all: 1") ||
		strings.Contains(out.String(), "NO:") {
		t.Errorf("err %v:\n%s", err, out.String())
	}
}

func TestAChapterThatFailedBeforeAnythingWasObservedHasASummary(t *testing.T) {
	t.Parallel()

	story := Story(PaceOf(false))

	var out strings.Builder
	if err := WriteSummary(&out, story, []Told{{Chapter: &story[0], Record: &Record{}}}, 0); err != nil {
		t.Fatal(err)
	}

	if strings.Count(out.String(), "not reached") != 2 || !strings.Contains(out.String(), "NO:") {
		t.Error(out.String())
	}
}

// When a rollout halts, the other nodes have staged the release and give it up; that is no try.
func TestANodeThatWasNeverToldToGoDidNotTry(t *testing.T) {
	t.Parallel()

	_, chapter, _ := chapters()
	record := play(&chapter)
	record.Last.Updates["node-2"].Status.History = []v1alpha1.AttemptRecord{{
		Version: chapter.Scenario.To.Version, Phase: v1alpha1.PhaseRefused, Reason: v1alpha1.ReasonAttemptSuperseded,
	}}

	if err := chapter.Check(record); err != nil {
		t.Error(err)
	}
}
