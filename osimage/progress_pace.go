package osimage

import (
	"fmt"
	"time"
)

const (
	// paceWindow is how far back a rate looks: long enough for a flush of the medium, short enough to show a stall.
	paceWindow = 30 * time.Second
	// paceStep is the least time between two marks, and paceLeast the time after which a rate means something.
	paceStep  = time.Second
	paceLeast = 2 * time.Second
)

// Pace tells how fast something goes by what it did in the last half minute, and when it will have ended. It is told of
// progress and the time, and asked for any time after it. The zero value knows nothing; another stage begins anew. It is
// not safe for concurrent use.
type Pace struct {
	stage Stage
	// marks are what was done when, oldest first. The first is the last one that is older than the window, if there is one.
	marks []paceMark
	// done of total is what was said last, at the time seen; done was something else before the time moved.
	done, total int64
	seen, moved time.Time
}

type paceMark struct {
	at   time.Time
	done int64
}

// Note takes progress in.
func (p *Pace) Note(now time.Time, progress Progress) {
	done, total := progress.done()

	// A clock that was set back, or work that is done once more, says nothing about how fast it goes.
	if progress.Stage != p.stage || done < p.done || now.Before(p.seen) {
		p.marks = nil
	}

	if len(p.marks) == 0 || done > p.done {
		p.moved = now
	}

	p.stage, p.done, p.total, p.seen = progress.Stage, done, total, now

	if count := len(p.marks); count == 0 || now.Sub(p.marks[count-1].at) >= paceStep {
		p.marks = append(p.marks, paceMark{at: now, done: done})
	}

	for len(p.marks) > 1 && now.Sub(p.marks[1].at) >= paceWindow {
		p.marks = p.marks[1:]
	}
}

// Rate is in bytes a second, of what the present stage counts; 0 means that nothing moves, or that it is too early to say.
func (p *Pace) Rate(now time.Time) float64 {
	if len(p.marks) == 0 || now.Sub(p.marks[0].at) < paceLeast {
		return 0
	}

	// What came since the last mark is in no other one: it would seem to go on for ever.
	if now.Sub(p.moved) >= paceWindow {
		return 0
	}

	first := p.marks[0]
	for _, mark := range p.marks {
		if now.Sub(mark.at) >= paceWindow {
			first = mark
		}
	}

	return float64(p.done-first.done) / now.Sub(first.at).Seconds()
}

// Left is how long the present stage will last at this rate, rounded to seconds; 0 when that cannot be said.
func (p *Pace) Left(now time.Time) time.Duration {
	rate := p.Rate(now)
	if rate <= 0 || p.done >= p.total {
		return 0
	}

	const longest = 100 * 24 * time.Hour // beyond, it says nothing, and does not fit

	seconds := float64(p.total-p.done) / rate
	if seconds > longest.Seconds() {
		return 0
	}

	return max(time.Duration(seconds*float64(time.Second)).Round(time.Second), time.Second)
}

// Text says rate and time left to a person, after a comma; "" when neither can be said.
func (p *Pace) Text(now time.Time) string {
	const mebibyte = 1 << 20

	text := ""
	if rate := p.Rate(now); rate > 0 {
		text = fmt.Sprintf(", %.1f MiB/s", rate/mebibyte)
	}

	if left := p.Left(now); left > 0 {
		text += fmt.Sprintf(", %s left", left)
	}

	return text
}
