package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/stayput-dev/stayput/osimage"
)

const (
	// plainEvery is how often a line is printed where there is no terminal.
	plainEvery = 5 * time.Second
	mebibyte   = 1 << 20
)

// progress shows how far parts of the work are: bars on a terminal, lines otherwise.
type progress interface {
	// show is write for work of one stage.
	show(part string, done, total int64)
	write(part string, now osimage.Progress)
	// note prints a line between.
	note(line string)
	// end waits until everything is shown; after it nothing may be shown.
	end()
}

func newProgress(out io.Writer) progress {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &barProgress{now: time.Now, bars: map[string]*bar{}, container: mpb.New(mpb.WithOutput(out), mpb.WithAutoRefresh())}
	}

	return &plainProgress{out: out, now: time.Now, parts: map[string]*plainPart{}}
}

// ofOneStage is progress of work that has only one.
func ofOneStage(done, total int64) osimage.Progress {
	return osimage.Progress{Stage: osimage.Writing, Written: done, Total: total}
}

// barProgress shows a bar for each part, and one for reading what is there before it is written.
type barProgress struct {
	now func() time.Time

	mutex     sync.Mutex
	container *mpb.Progress
	bars      map[string]*bar
}

// bar has its own lock, since it is drawn at any time.
type bar struct {
	*mpb.Bar

	mutex sync.Mutex
	pace  osimage.Pace
	last  osimage.Progress
}

func (p *barProgress) show(part string, done, total int64) { p.write(part, ofOneStage(done, total)) }

func (p *barProgress) write(part string, now osimage.Progress) {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	name, done, total := part, now.Written, now.Total
	if now.Stage == osimage.Surveying {
		name, done, total = part+": reading", now.Surveyed, now.ToSurvey
	}

	shown := p.bars[name]
	if shown == nil {
		shown = p.add(name, total)
	}

	shown.note(p.now(), now)

	// The total of a push grows while it finds out what is missing.
	shown.SetTotal(total, false)
	shown.SetCurrent(done)
}

func (p *barProgress) add(name string, total int64) *bar {
	added := &bar{}
	added.Bar = p.container.AddBar(total,
		mpb.PrependDecorators(decor.Name(name, decor.WCSyncSpaceR)),
		mpb.AppendDecorators(
			decor.CountersKibiByte("% .1f/% .1f", decor.WCSyncSpace),
			decor.OnComplete(decor.Any(func(decor.Statistics) string { return added.text(p.now()) }), ", done"),
		))
	p.bars[name] = added

	return added
}

func (b *bar) note(at time.Time, now osimage.Progress) {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	b.pace.Note(at, now)
	b.last = now
}

// text is what stands behind the counters.
func (b *bar) text(at time.Time) string {
	b.mutex.Lock()
	defer b.mutex.Unlock()

	text := ""

	switch {
	case b.last.Stage == osimage.Verifying:
		text = ", reading back"
	case b.last.Stage == osimage.Writing && b.last.ToFetch > 0:
		text = fmt.Sprintf(", %.1f/%.1f MiB fetched", inMebibytes(b.last.Fetched), inMebibytes(b.last.ToFetch))
	}

	return text + b.pace.Text(at)
}

func inMebibytes(bytes int64) float64 { return float64(bytes) / mebibyte }

func (p *barProgress) note(line string) {
	// What cannot be shown is no reason to stop the work.
	_, _ = fmt.Fprintln(p.container, line)
}

func (p *barProgress) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	for _, bar := range p.bars {
		if bar.Current() > 0 {
			bar.SetTotal(bar.Current(), true)
		}

		bar.Abort(false)
	}

	p.container.Wait()
}

// plainProgress prints a line now and then.
type plainProgress struct {
	out io.Writer
	now func() time.Time

	mutex sync.Mutex
	parts map[string]*plainPart
}

type plainPart struct {
	pace  osimage.Pace
	stage osimage.Stage
	last  time.Time
	// done tells that the last line of the stage was printed.
	done bool
}

func (p *plainProgress) show(part string, done, total int64) { p.write(part, ofOneStage(done, total)) }

// write prints a line at the beginning of a stage and at its end, and every few seconds between them. Reading back goes on
// beside writing, so it begins with no line; since all is written only then, its end is that of the whole work.
func (p *plainProgress) write(name string, now osimage.Progress) {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	at, part := p.now(), p.parts[name]
	if part == nil {
		part = &plainPart{}
		p.parts[name] = part
	}

	part.pace.Note(at, now)

	ends := now.Stage == osimage.Writing && now.Written >= now.Total ||
		now.Stage == osimage.Surveying && now.Surveyed >= now.ToSurvey ||
		now.Stage == osimage.Verifying && now.Verified >= now.Total
	begins := now.Stage != part.stage && now.Stage != osimage.Verifying

	if now.Stage != part.stage {
		part.stage, part.done = now.Stage, false
	}

	if part.done || (!begins && !ends && at.Sub(part.last) < plainEvery) {
		return
	}

	part.last, part.done = at, ends
	p.line(name + ": " + now.String() + part.pace.Text(at))
}

func (p *plainProgress) note(line string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	p.line(line)
}

func (p *plainProgress) line(text string) {
	// Progress that cannot be shown is no reason to stop the work.
	_, _ = fmt.Fprintln(p.out, text)
}

func (p *plainProgress) end() {}
