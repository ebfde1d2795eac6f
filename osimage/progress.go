package osimage

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// Stage is what the writing of a content is at.
type Stage string

// The stages, in their order. One that is not needed is left out.
const (
	// Surveying: what the seeds and the target have is read, to find out what need not be fetched.
	Surveying Stage = "surveying"
	// Writing: bytes are fetched, copied and written, and read back a little behind.
	Writing Stage = "writing"
	// Verifying: all is written, and the rest of it is read back.
	Verifying Stage = "verifying"
)

// Progress is how far the writing of a content is, in bytes.
type Progress struct {
	Stage Stage
	// Surveyed are those of the seeds and the target that were read so far, ToSurvey all of them.
	Surveyed, ToSurvey int64
	// Plan says how the content will be written; nil until that is known, and in a sum.
	Plan *Planned
	// Fetched are those of the layer and its chunk index that came so far, ToFetch those that come in all: 0 until there is
	// a plan.
	Fetched, ToFetch int64
	// Reused are the raw bytes that, by the plan, the target or the seeds have, zeros aside.
	Reused int64
	// Written are the raw bytes that are on the target, those that were kept included, and Verified those that were read
	// back from it. Both begin anew when a content has to be written once more.
	Written, Verified, Total int64
}

// Plus is the progress of several contents: of those before, and of the one that is being written.
func (p Progress) Plus(present Progress) Progress {
	return Progress{
		Stage:    present.Stage,
		Surveyed: p.Surveyed + present.Surveyed, ToSurvey: p.ToSurvey + present.ToSurvey,
		Fetched: p.Fetched + present.Fetched, ToFetch: p.ToFetch + present.ToFetch, Reused: p.Reused + present.Reused,
		Written: p.Written + present.Written, Verified: p.Verified + present.Verified, Total: p.Total + present.Total,
	}
}

// done is what counts in the present stage, and of how many bytes.
func (p Progress) done() (done, total int64) {
	switch p.Stage {
	case Surveying:
		return p.Surveyed, p.ToSurvey
	case Verifying:
		return p.Verified, p.Total
	case Writing:
	}

	return p.Written, p.Total
}

// String says it to a person.
func (p Progress) String() string {
	const (
		mebibyte = 1 << 20
		percent  = 100
	)

	done, total := p.done()
	text := map[Stage]string{Surveying: "reading what is there, ", Verifying: "reading back, "}[p.Stage]
	share := int64(percent)

	if total > 0 {
		share = done * percent / total
	}

	text += fmt.Sprintf("%.1f of %.1f MiB (%d%%)", float64(done)/mebibyte, float64(total)/mebibyte, share)

	if p.Stage == Writing && p.ToFetch > 0 {
		text += fmt.Sprintf(", fetched %.1f of %.1f MiB", float64(p.Fetched)/mebibyte, float64(p.ToFetch)/mebibyte)
	}

	return text
}

// tellEvery is after how many fetched bytes progress is told though nothing was written meanwhile.
const tellEvery = 256 << 10

// meter counts the progress of one content, and tells of it: from several goroutines, but not at the same time.
type meter struct {
	tell func(progress Progress)
	// counts tells that what comes is counted: of an image, not of any other source.
	counts bool

	mutex sync.Mutex
	now   Progress
	// told is what was fetched when that was told last.
	told int64
}

func newMeter(content Content, tell func(progress Progress)) *meter {
	if tell == nil {
		tell = func(Progress) {}
	}

	return &meter{tell: tell, now: Progress{Total: content.RawSize}}
}

func (m *meter) change(change func(now *Progress)) {
	m.mutex.Lock()
	defer m.mutex.Unlock()

	change(&m.now)

	// A frame that is not what it should be is fetched again, which no plan knows.
	if m.now.ToFetch > 0 {
		m.now.ToFetch = max(m.now.ToFetch, m.now.Fetched)
	}

	if m.now.Stage != "" {
		m.told = m.now.Fetched
		m.tell(m.now)
	}
}

// fetched counts bytes that came.
func (m *meter) fetched(count int64) {
	m.mutex.Lock()
	m.now.Fetched += count
	due := m.now.Fetched-m.told >= tellEvery
	m.mutex.Unlock()

	if due {
		m.change(func(*Progress) {})
	}
}

// surveying begins a survey of so many bytes.
func (m *meter) surveying(total int64) {
	if total == 0 {
		return // there is nothing yet
	}

	m.change(func(now *Progress) { now.Stage, now.Surveyed, now.ToSurvey = Surveying, 0, total })
}

// planned notes what else will be fetched.
func (m *meter) planned(plan Planned) {
	m.change(func(now *Progress) {
		now.Plan, now.Reused = &plan, plan.Kept+plan.Reused

		if m.counts {
			now.ToFetch = now.Fetched + plan.Fetch
		}
	})
}

// writing begins to write, from a raw offset.
func (m *meter) writing(start int64) {
	m.change(func(now *Progress) { now.Stage, now.Written, now.Verified = Writing, start, 0 })
}

func (m *meter) written(done int64) {
	m.change(func(now *Progress) {
		if now.Written = done; done == now.Total {
			now.Stage = Verifying
		}
	})
}

func (m *meter) verified(done int64) {
	m.change(func(now *Progress) { now.Verified = done })
}

// read counts what a reader has handed out.
func (m *meter) read(count int64) {
	m.change(func(now *Progress) { now.Written += count })
}

// part is something that is surveyed. Expected is how many bytes it seems to have.
type part struct {
	reader          io.Reader
	start, expected int64
}

func partOf(seed Seed) part {
	return part{reader: io.NewSectionReader(seed.Reader, 0, seed.Size), expected: seed.Size}
}

// targetPart is what the target has from a byte of the content on, of which a file that grows need not have any yet.
func (w *writing) targetPart(start, size int64) part {
	from, expected := w.options.Offset+start, size

	if file, ok := w.target.(descriptor); ok {
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			expected = max(min(size, info.Size()-from), 0)
		}
	}

	return part{reader: io.NewSectionReader(w.target, from, size), start: start, expected: expected}
}

func (w *writing) toSurvey(target []part) (bytes int64) {
	for _, seed := range w.options.Seeds {
		bytes += seed.Size
	}

	for _, part := range target {
		bytes += part.expected
	}

	return bytes
}

// survey is a reader of a part. Its end counts what was not read.
func (m *meter) survey(part part) *surveyReader {
	return &surveyReader{reader: part.reader, meter: m, left: part.expected}
}

type surveyReader struct {
	reader io.Reader
	meter  *meter
	left   int64
}

func (s *surveyReader) Read(buffer []byte) (int, error) {
	count, err := s.reader.Read(buffer)
	s.count(min(int64(count), s.left))

	return count, err
}

func (s *surveyReader) end() { s.count(s.left) }

func (s *surveyReader) count(count int64) {
	if count > 0 {
		s.left -= count
		s.meter.change(func(now *Progress) { now.Surveyed += count })
	}
}

// metered is the same image with a count of what comes of its blobs.
func (i *Image) metered(count func(bytes int64)) *Image {
	metered := *i
	metered.blobs = &meteredBlobs{blobs: i.blobs, count: count}

	return &metered
}

// meteredBlobs counts what is read.
type meteredBlobs struct {
	blobs

	count func(bytes int64)
}

var _ rangedBlobs = (*meteredBlobs)(nil)

func (m *meteredBlobs) open(ctx context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	return m.metered(m.blobs.open(ctx, source, from, to))
}

// openRange is open where there is nothing that can fail to have ranges.
func (m *meteredBlobs) openRange(ctx context.Context, source blob, from, to int64) (io.ReadCloser, error) {
	if ranged, ok := m.blobs.(rangedBlobs); ok {
		return m.metered(ranged.openRange(ctx, source, from, to))
	}

	return m.open(ctx, source, from, to)
}

func (m *meteredBlobs) distrustMirrors() bool {
	source, ok := m.blobs.(interface{ distrustMirrors() bool })

	return ok && source.distrustMirrors()
}

func (m *meteredBlobs) metered(body io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}

	return &countedReader{ReadCloser: body, count: m.count}, nil
}

// countedReader counts what is read.
type countedReader struct {
	io.ReadCloser

	count func(bytes int64)
}

func (c *countedReader) Read(buffer []byte) (int, error) {
	count, err := c.ReadCloser.Read(buffer)
	c.count(int64(count))

	return count, err
}
