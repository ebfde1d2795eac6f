package chunk

import (
	"encoding/binary"
	"slices"
)

// Outline is an index whose ids are not all known. Learn finds those that are at hand; Missing says which bytes of the ids
// must be fetched, and Fill takes them.
type Outline struct {
	index  *Index
	groups []idGroup
}

// Span is a range of bytes of the ids, from From up to To.
type Span struct {
	From, To int64
}

// Params returns how the content was cut.
func (o *Outline) Params() Params {
	return o.index.params
}

// Learn takes over the ids of the groups that a census has too. One that was cut in another way has none.
//
// A sum has 64 bits, so whoever can choose the bytes of older and newer contents can find two groups with one sum. Then
// chunks have ids that are not theirs: what is taken for them fails the digest of the whole content, and the frames that
// have them fail Index.Matches, though they are right. All of the layer is to be fetched then.
func (o *Outline) Learn(census *Census) {
	if census.params != o.index.params {
		return
	}

	// A group that spans a large hole may occur often. Nobody shall look through the hole each time for hours.
	left := learnEffort

	for number := range o.groups {
		group := &o.groups[number]

		known, ok := census.groups[group.sum]
		if ok && !group.known && known.count == group.count && left > 0 {
			left -= o.copy(group, census.ids[known.first:])
		}
	}
}

// learnEffort is how many ids of a census are looked at, at most: some times all of them.
const learnEffort = 16 * MaxChunks

// copy takes the ids of a group from others that begin with them, zeros left aside, and returns how many it looked at.
func (o *Outline) copy(group *idGroup, ids []ID) int {
	found := make([]ID, 0, group.count)

	for number, id := range ids {
		if id != 0 {
			found = append(found, id)
		}

		if len(found) == int(group.count) {
			o.set(group, found)

			return number + 1
		}
	}

	return len(ids)
}

// set gives the group's chunks their ids.
func (o *Outline) set(group *idGroup, ids []ID) {
	for number := int(group.first); len(ids) > 0; number++ {
		if o.index.ids[number] != 0 {
			o.index.ids[number] = ids[0]
			ids = ids[1:]
		}
	}

	group.known = true
}

// Missing are the bytes of the ids that are not known, in order. Spans with at most gap bytes between them are one.
func (o *Outline) Missing(gap int64) []Span {
	var (
		result []Span
		at     int64
	)

	for _, group := range o.groups {
		from := at
		at += int64(group.count) * idSize

		if group.known {
			continue
		}

		if last := len(result) - 1; last >= 0 && from-result[last].To <= gap {
			result[last].To = at
		} else {
			result = append(result, Span{From: from, To: at})
		}
	}

	return result
}

// Fill takes the bytes of a span that Missing has returned. It returns ErrIndex when they are not what the sums say.
func (o *Outline) Fill(span Span, data []byte) error {
	if int64(len(data)) != span.To-span.From {
		return broken("ids", "%d bytes, want those from %d to %d", len(data), span.From, span.To)
	}

	var at int64

	for number := range o.groups {
		group := &o.groups[number]
		from, to := at-span.From, at-span.From+int64(group.count)*idSize
		at += int64(group.count) * idSize

		if group.known || from < 0 || to > int64(len(data)) {
			continue
		}

		if err := o.fillGroup(group, data[from:to]); err != nil {
			return err
		}
	}

	return nil
}

func (o *Outline) fillGroup(group *idGroup, data []byte) error {
	ids := make([]ID, 0, group.count)

	var grouper idGrouper

	for number := range slices.Chunk(data, idSize) {
		id := ID(binary.BigEndian.Uint64(number))
		if id == 0 {
			return broken("ids", "zero for a chunk that is not zeros, in the group of chunk %d", group.first)
		}

		ids = append(ids, id)
		got, ended := grouper.add(0, id)

		if last := len(ids) == int(group.count); ended && !last {
			return broken("ids", "the group of chunk %d ends too soon", group.first)
		} else if !last {
			continue
		} else if !ended {
			got, _ = grouper.end()
		}

		if got.sum != group.sum {
			return broken("ids", "those of the group of chunk %d have the sum %016x, want %016x", group.first, got.sum, group.sum)
		}
	}

	o.set(group, ids)

	return nil
}

// Index returns the index. It returns ErrIndex as long as ids are missing.
func (o *Outline) Index() (*Index, error) {
	for _, group := range o.groups {
		if !group.known {
			return nil, broken("ids", "those of the group of chunk %d are missing", group.first)
		}
	}

	return o.index, nil
}
