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
)

const (
	// plainEvery is how often a line is printed where there is no terminal.
	plainEvery = 5 * time.Second
	mebibyte   = 1 << 20
	percent    = 100
)

// progress shows how far parts of the work are: bars on a terminal, lines otherwise.
type progress interface {
	show(part string, done, total int64)
	// end waits until everything is shown; after it nothing may be shown.
	end()
}

func newProgress(out io.Writer) progress {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return &barProgress{bars: map[string]*mpb.Bar{}, container: mpb.New(mpb.WithOutput(out), mpb.WithAutoRefresh())}
	}

	return &plainProgress{out: out, now: time.Now, last: map[string]time.Time{}, done: map[string]bool{}}
}

// barProgress shows a bar for each part.
type barProgress struct {
	mutex     sync.Mutex
	container *mpb.Progress
	bars      map[string]*mpb.Bar
}

func (p *barProgress) show(part string, done, total int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	bar := p.bars[part]
	if bar == nil {
		bar = p.container.AddBar(total,
			mpb.PrependDecorators(decor.Name(part, decor.WCSyncSpaceR)),
			mpb.AppendDecorators(
				decor.CountersKibiByte("% .1f / % .1f", decor.WCSyncSpace),
				decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO, decor.WCSyncSpace), "done"),
			))
		p.bars[part] = bar
	}

	// The total of a push grows while it finds out what is missing.
	bar.SetTotal(total, false)
	bar.SetCurrent(done)
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
	last  map[string]time.Time
	done  map[string]bool
}

func (p *plainProgress) show(part string, done, total int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()

	now := p.now()
	complete := done >= total

	if p.done[part] || (!complete && now.Sub(p.last[part]) < plainEvery) {
		return
	}

	p.last[part], p.done[part] = now, complete

	share := int64(percent)
	if total > 0 {
		share = done * percent / total
	}

	// Progress that cannot be shown is no reason to stop the work.
	_, _ = fmt.Fprintf(p.out, "%s: %.1f of %.1f MiB (%d%%)\n",
		part, float64(done)/mebibyte, float64(total)/mebibyte, share)
}

func (p *plainProgress) end() {}
