package faulty

import (
	"errors"
)

// ErrPowerCut is returned by everything once the power is gone.
var ErrPowerCut = errors.New("the power is gone")

// Power goes off after a number of effects: writes, syncs, renames and removals count.
type Power struct {
	left int
	used int
	off  bool
	ever bool
}

// CutAfter lets that many more effects happen; the last of them is cut off in the middle. 0 is never.
func (p *Power) CutAfter(effects int) { p.left, p.used, p.ever = effects, 0, effects > 0 }

// Used is how many effects there were since CutAfter.
func (p *Power) Used() int { return p.used }

// Off tells whether the power is gone.
func (p *Power) Off() bool { return p.off }

// step is called at each effect, once it is in the volatile cache.
func (p *Power) step() error {
	if p.off {
		return ErrPowerCut
	}

	p.used++

	if !p.ever {
		return nil
	}

	p.left--
	if p.left > 0 {
		return nil
	}

	p.off = true

	return ErrPowerCut
}

// Fate says what a power cut does to what was not synced.
type Fate func(choices int) int

// KeepNothing loses everything that was not synced: a choice of 0 is that nothing of the effect happened.
func KeepNothing(int) int { return 0 }

// KeepEverything loses nothing: the highest choice is that all of the effect happened.
func KeepEverything(choices int) int { return choices - 1 }

// KeepSome decides by a pseudo-random sequence.
func KeepSome(seed uint64) Fate {
	state := seed*2862933555777941757 + 3037000493

	return func(choices int) int {
		// Steele & Vigna's splitmix64.
		state += 0x9e3779b97f4a7c15
		mixed := state
		mixed = (mixed ^ mixed>>30) * 0xbf58476d1ce4e5b9
		mixed = (mixed ^ mixed>>27) * 0x94d049bb133111eb
		mixed ^= mixed >> 31

		return int(mixed % uint64(choices)) //nolint:gosec // below choices
	}
}
