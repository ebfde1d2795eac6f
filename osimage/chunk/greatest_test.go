package chunk

import (
	"encoding/binary"
	"runtime"
	"testing"
)

// greatest is the index that costs a reader the most, as somebody can make it: each id ends a group, each chunk is a frame.
func greatest() *Index {
	index := newIndex(Params{Min: leastChunk, Avg: leastChunk, Max: 2 * leastChunk, Align: 1}, MaxChunks, MaxChunks)

	for number := range MaxChunks {
		index.add(leastChunk, ID(uint64(number+1)*0x9E3779B185EBCA87|32)&^groupMask)
		index.endFrame(leastChunk)
	}

	return index
}

// What a node needs for the greatest index that Parse takes is fixed, whoever made it: here with a seed, and a target that
// holds two older contents, which are as bad, and a request for every second frame.
func TestTheGreatestIndexIsBounded(t *testing.T) {
	const most = 64 << 20

	head, ids, err := greatest().marshal()
	if err != nil {
		t.Fatal(err)
	}

	sizes := Sizes{Raw: MaxChunks * leastChunk, Layer: MaxChunks * leastChunk, IDs: int64(len(ids))}
	before := live()

	outline, err := ParseHead(head, sizes)
	if err != nil {
		t.Fatal(err)
	}

	var known [3]*Census

	for place := range known {
		known[place] = newCensus(outline.Params(), 0)

		for number := range MaxChunks {
			id := ID(binary.BigEndian.Uint64(ids[8*number:]))
			if number%2 == 1 {
				id ^= ID(place+1) << 40 // another content
			}

			known[place].add(leastChunk, id)
		}

		known[place].end()
		outline.Learn(known[place])
	}

	if err := outline.Fill(Span{To: sizes.IDs}, ids); err != nil {
		t.Fatal(err)
	}

	index, err := outline.Index()
	if err != nil {
		t.Fatal(err)
	}

	seeds := NewSeeds(index)
	if _, err := seeds.Add(known[0]); err != nil {
		t.Fatal(err)
	}

	seeds.AddTarget(known[1])
	seeds.AddTarget(known[2])

	plan, err := NewPlan(index, seeds, PlanOptions{Gap: -1, RequestCost: 1})
	if err != nil || plan.Totals.Requests < MaxChunks/2 {
		t.Fatalf("%+v, %v", plan.Totals, err)
	}

	used := live() - before
	t.Logf("%d MiB for an index of %d MiB", used>>20, (len(head)+len(ids))>>20)

	if used > most {
		t.Errorf("%d bytes are in use, want at most %d", used, most)
	}

	runtime.KeepAlive(known)
	runtime.KeepAlive(outline)
	runtime.KeepAlive(plan)
}

func live() int64 {
	var stats runtime.MemStats

	runtime.GC()
	runtime.ReadMemStats(&stats)

	return int64(stats.HeapAlloc)
}
