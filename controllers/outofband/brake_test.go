package outofband

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// peersOf makes a pool of size Nodes, n00 and on, of which those of lost fell silent, at that time after silence.
func peersOf(size int, lost map[int]time.Duration) []peer {
	peers := make([]peer, size)
	for i := range peers {
		peers[i].Node = fmt.Sprintf("n%02d", i)
		if after, silent := lost[i]; silent {
			peers[i].LostAt = silence.Add(after)
		}
	}

	return peers
}

//nolint:gochecknoglobals // what nobody changes
var silence = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestBrake(t *testing.T) {
	t.Parallel()
	percent := intstr.FromString("20%")
	rebooting := func(peers []peer, nodes ...int) []peer {
		for _, i := range nodes {
			peers[i].Excused = true
		}

		return peers
	}
	early, late := -together, 5*time.Hour
	for name, tt := range map[string]struct {
		peers []peer
		most  intstr.IntOrString
		text  string // how it begins; "": no brake
	}{
		"no other":               {peersOf(1, map[int]time.Duration{0: 0}), percent, ""},
		"none silent":            {peersOf(11, nil), percent, ""},
		"own does not count":     {peersOf(11, map[int]time.Duration{0: 0, 1: 0, 2: 0}), percent, ""},
		"one of one":             {peersOf(2, map[int]time.Duration{1: 0}), percent, ""},
		"one of four is no sign": {peersOf(5, map[int]time.Duration{1: 0}), percent, ""},
		"two of four":            {peersOf(5, map[int]time.Duration{1: 0, 2: 0}), percent, "2 of the pool's 4 "},
		"three of ten":           {peersOf(11, map[int]time.Duration{3: 0, 1: 0, 2: 0}), percent, "3 of the pool's 10 "},
		"names are sorted": {
			peersOf(11, map[int]time.Duration{3: 0, 1: 0, 2: 0}), percent,
			"3 of the pool's 10 other Nodes have fallen silent, too (n01, n02, n03), so the network",
		},
		"names are cut": {
			peersOf(11, map[int]time.Duration{9: 0, 3: 0, 1: 0, 2: 0, 8: 0}), percent,
			"5 of the pool's 10 other Nodes have fallen silent, too (n01, n02, n03 and 2 more), so the network",
		},
		"two of nine: rounded down":   {peersOf(10, map[int]time.Duration{1: 0, 2: 0}), percent, "2 of the pool's 9 "},
		"just before":                 {peersOf(11, map[int]time.Duration{1: early, 2: early, 3: early}), percent, "3 of the pool's 10 "},
		"long before":                 {peersOf(11, map[int]time.Duration{1: early - 1, 2: early, 3: early}), percent, ""},
		"long after":                  {peersOf(11, map[int]time.Duration{1: late, 2: late, 3: late}), percent, "3 of the pool's 10 "},
		"those that reboot are out":   {rebooting(peersOf(11, map[int]time.Duration{1: 0, 2: 0, 3: 0}), 1), percent, "2 of the pool's 9 "},
		"all that are silent reboot":  {rebooting(peersOf(11, map[int]time.Duration{1: 0, 2: 0, 3: 0}), 1, 2, 3), percent, ""},
		"own reboots":                 {rebooting(peersOf(11, map[int]time.Duration{1: 0, 2: 0, 3: 0}), 0), percent, "3 of the pool's 10 "},
		"a number":                    {peersOf(11, map[int]time.Duration{1: 0, 2: 0, 3: 0, 4: 0}), intstr.FromInt32(3), "4 of the pool's 10 "},
		"a number that is not passed": {peersOf(11, map[int]time.Duration{1: 0, 2: 0, 3: 0}), intstr.FromInt32(3), ""},
		"all may be silent":           {peersOf(4, map[int]time.Duration{1: 0, 2: 0, 3: 0}), intstr.FromString("100%"), ""},
		"what the API refuses is one": {peersOf(4, map[int]time.Duration{1: 0, 2: 0}), intstr.FromString("many"), "2 of the pool's 3 "},
		"none is one":                 {peersOf(4, map[int]time.Duration{1: 0}), intstr.FromInt32(0), ""},
	} {
		text := brake(tt.peers, "n00", silence, tt.most)
		if !strings.HasPrefix(text, tt.text) || (text == "") != (tt.text == "") {
			t.Errorf("%s: got %q", name, text)
		}
		for _, word := range []string{"network", "cluster", "by themselves", "spec.outOfBand.maxSilent", tt.most.String()} {
			if text != "" && !strings.Contains(text, word) {
				t.Errorf("%s: %q does not say %q", name, text, word)
			}
		}
	}
}

// Whatever the pool: the order of its Nodes says nothing, one silent Node never brakes, one more silent Node never lets go,
// and one more that is well never brakes when the bound is a number.
func TestBrakeOfAnyPool(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 60).Draw(t, "size")
		peers := peersOf(size, nil)
		silent := 0
		for i := range peers {
			peers[i].Excused = rapid.IntRange(0, 4).Draw(t, "rebooting") == 0
			if rapid.Bool().Draw(t, "silent") {
				peers[i].LostAt = silence.Add(time.Duration(rapid.IntRange(-40, 40).Draw(t, "minutes")) * time.Minute)
			}
			if i > 0 && !peers[i].LostAt.IsZero() {
				silent++
			}
		}
		most := intstr.FromInt32(int32(rapid.IntRange(1, 60).Draw(t, "most")))
		if rapid.Bool().Draw(t, "percent") {
			most = intstr.FromString(fmt.Sprintf("%d%%", rapid.IntRange(1, 100).Draw(t, "most")))
		}
		text := brake(peers, "n00", silence, most)
		if text != "" && silent < 2 {
			t.Fatalf("%d silent Nodes brake: %s", silent, text)
		}
		if shuffled := brake(rapid.Permutation(peers).Draw(t, "shuffled"), "n00", silence, most); shuffled != text {
			t.Fatalf("in another order: %q instead of %q", shuffled, text)
		}
		if at := rapid.IntRange(0, size-1).Draw(t, "more"); text != "" && peers[at].LostAt.IsZero() {
			more := append([]peer(nil), peers...)
			more[at].LostAt = silence
			if brake(more, "n00", silence, most) == "" {
				t.Fatalf("one more silent Node, and no brake")
			}
		}
		if more := append(peersOf(0, nil), peers...); text == "" && most.Type == intstr.Int {
			if text := brake(append(more, peer{Node: "well"}), "n00", silence, most); text != "" {
				t.Fatalf("one more Node that is well brakes: %s", text)
			}
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	p := newPace(2)
	at := func(seconds int) time.Time { return silence.Add(time.Duration(seconds) * time.Second) }
	for i, step := range []struct {
		second, wait int
	}{{0, 0}, {10, 0}, {10, 50}, {30, 30}, {59, 1}, {60, 0}, {60, 10}, {70, 0}, {100, 20}, {500, 0}, {500, 0}, {501, 59}} {
		if wait := p.take(at(step.second)); wait != time.Duration(step.wait)*time.Second {
			t.Errorf("step %d, second %d: got %s", i, step.second, wait)
		}
	}
	p.spend(at(520)) // and 500
	if wait := p.take(at(561)); wait != 0 {
		t.Errorf("got %s", wait)
	}
	p.spend(at(562))
	p.spend(at(563))
	if wait := p.take(at(570)); wait != 52*time.Second {
		t.Errorf("after more than are allowed: got %s", wait)
	}
	if p := newPace(0); p.take(silence) != 0 || p.take(silence) != time.Minute {
		t.Error("less than one a minute")
	}
}

// In no minute more actions are taken than allowed; no action waits that need not; who waits as told is served.
func TestPaceOfAnyActions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		allowed := rapid.IntRange(1, 12).Draw(t, "allowed")
		p, now := newPace(allowed), silence
		var taken []time.Time
		for range rapid.IntRange(1, 60).Draw(t, "actions") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(15*time.Second)).Draw(t, "later")))
			recent := 0
			for _, at := range taken {
				if now.Sub(at) < time.Minute {
					recent++
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "cannot wait") == 0 {
				p.spend(now)
				taken = append(taken, now)

				continue
			}
			wait := p.take(now)
			if (wait == 0) != (recent < allowed) || wait < 0 || wait > time.Minute {
				t.Fatalf("%d of %d actions in the last minute, and the wait is %s", recent, allowed, wait)
			}
			if wait > 0 && rapid.Bool().Draw(t, "waits") {
				if now = now.Add(wait); p.take(now) != 0 {
					t.Fatalf("after a wait of %s it must wait again", wait)
				}
				wait = 0
			}
			if wait == 0 {
				taken = append(taken, now)
			}
		}
	})
}

func TestPaceIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	p := newPace(50)
	var all sync.WaitGroup
	var mu sync.Mutex
	taken := 0
	for range 200 {
		all.Go(func() {
			if p.take(silence) == 0 {
				mu.Lock()
				defer mu.Unlock()
				taken++
			}
		})
	}
	if all.Wait(); taken != 50 {
		t.Errorf("%d were allowed", taken)
	}
}
