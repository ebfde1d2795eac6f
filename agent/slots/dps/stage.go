package dps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

const (
	// readBytes is how much is read at once.
	readBytes = 1 << 20
	// syncBytes is how much is written between two syncs: what a power cut costs at most, and a bound on dirty memory.
	syncBytes = 64 << 20
)

var (
	// errReadBack is returned when the medium gives back other bytes than were written. The next call writes them anew.
	errReadBack     = errors.New("the medium gave back other bytes than were written; if it happens again, replace the disk")
	errTableChanged = errors.New("another program has just changed the partition table; try again")
)

// Stage makes the spare slot unbootable, writes the image into it, and reads everything back. A call that stopped is
// gone on with where its last bytes were synced. When it returns nil nothing boots the spare slot yet.
func (s *Scheme) Stage(ctx context.Context, source slots.Source, progress slots.Progress) error {
	image := source.Config()
	if progress == nil {
		progress = func(osimage.Progress) {}
	}

	return s.withView(ctx, "staging "+image.Label(), func(v *view) error {
		if err := s.check(ctx, v, image); err != nil {
			return err
		}

		n, err := s.begin(ctx, v, image)
		if err != nil {
			return err
		}

		w := writer{scheme: s, view: v, image: image, source: source, progress: progress, note: n}

		if err := w.writeAll(ctx); err != nil {
			return err
		}

		return w.verify(ctx)
	})
}

// begin returns the note of an earlier call that can be gone on with, or makes the spare slot unbootable.
func (s *Scheme) begin(ctx context.Context, v *view, image osimage.Config) (note, error) {
	n, err := s.loadNote()
	if err != nil {
		return note{}, err
	}

	spare := v.layout.spare
	emptied := n.isOf(spare)
	named := n.Verified && spare.rootHash() == image.RootHash // arming was interrupted
	unchanged := n.Image == imageKey(image) && (emptied || named)

	for _, e := range v.entries {
		unchanged = unchanged && !v.ofSpare(e, image)
	}

	if unchanged {
		return n, nil
	}

	for _, file := range v.removable(image) {
		if err := v.files.Remove(file); err != nil {
			return note{}, fmt.Errorf("taking boot file %s away: %w", file, err)
		}
	}

	n = note{Image: imageKey(image), RootHash: image.RootHash, Data: randomUUID(), Verity: randomUUID()}
	if err := s.saveNote(n); err != nil {
		return note{}, err
	}

	return n, s.rename(ctx, v, emptyLabel, n.Data, n.Verity)
}

func randomUUID() string { return strings.ToUpper(string(uuid.NewUUID())) }

// rename gives the spare slot a label and part UUIDs, on the disk.
func (s *Scheme) rename(ctx context.Context, v *view, label, dataUUID, verityUUID string) (err error) {
	disk, err := s.host.OpenDisk(ctx, true)
	if err != nil {
		return fmt.Errorf("opening disk %s: %w", v.place.Disk, err)
	}

	defer func() { err = errors.Join(err, disk.Close()) }()

	// Read again: the disk is locked only now.
	table, err := readPartitions(disk, v.place)
	if err != nil {
		return err
	}

	fresh, err := layoutOf(table, v.place, s.architecture, v.layout.esp.GUID)
	if err != nil {
		return err
	}

	if fresh.spare != v.layout.spare || fresh.running != v.layout.running {
		return fmt.Errorf("naming the spare slot on %s: %w", v.place.Disk, errTableChanged)
	}

	if err := table.mend(disk, v.place); err != nil {
		return err
	}

	if err := fresh.renameSpare(label, dataUUID, verityUUID); err != nil {
		return err
	}

	if err := table.write(disk, v.place); err != nil {
		return err
	}

	v.layout, err = layoutOf(table, v.place, s.architecture, v.layout.esp.GUID)

	return err
}

// writer writes one image into the spare slot.
type writer struct {
	scheme   *Scheme
	view     *view
	image    osimage.Config
	source   slots.Source
	progress slots.Progress
	note     note
	// before is the progress of the contents before the present one.
	before osimage.Progress
}

// tell tells how far the present content is, and with it the image.
func (w *writer) tell(present osimage.Progress) {
	sum := w.before.Plus(present)
	sum.Total = 0

	for _, role := range stagedRoles(w.image) {
		content, _ := w.image.Content(role)
		sum.Total += content.RawSize
	}

	w.progress(sum)
}

func (w *writer) writeAll(ctx context.Context) error {
	for _, role := range stagedRoles(w.image) {
		content, _ := w.image.Content(role)

		var (
			last osimage.Progress
			err  error
		)

		tell := func(now osimage.Progress) {
			last = now
			w.tell(now)
		}

		if role == osimage.RoleUKI {
			err = w.writeUKI(ctx, content, tell)
		} else {
			err = w.writePartition(ctx, content, tell)
		}

		if err != nil {
			return fmt.Errorf("writing content %s: %w", role, w.explain(role, err))
		}

		w.before = w.before.Plus(last)
	}

	return nil
}

// explain makes refusals of the errors of a source that a retry cannot mend. What was written of the content is forgotten.
func (w *writer) explain(role osimage.Role, err error) error {
	if osimage.HasOtherBytes(err) || errors.Is(err, osimage.ErrNotAnImage) {
		refusal := slots.Refuse(v1alpha1.ReasonImageInvalid, "image %s cannot be used: %v", w.image.Label(), err)

		return errors.Join(refusal, w.noteSynced(role, 0))
	}

	return err
}

// writePartition writes a content and reads it back. What an earlier call has synced is read back only.
func (w *writer) writePartition(ctx context.Context, content osimage.Content, tell slots.Progress) (err error) {
	medium, err := w.scheme.host.OpenPartition(ctx, w.number(content.Role), true)
	if err != nil {
		return fmt.Errorf("opening partition %d of %s: %w", w.number(content.Role), w.view.place.Disk, err)
	}

	defer func() { err = errors.Join(err, medium.Close()) }()

	running, err := w.runningSeed(ctx, content.Role)
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, running.close()) }()

	done := w.note.Synced[content.Role]

	return osimage.Write(ctx, w.source, content.Role, medium, osimage.WriteOptions{
		// What an older version has left in the spare slot is often in the next one, too.
		Resume: true,
		Room:   w.room(w.number(content.Role)), Start: done, SyncEvery: w.scheme.syncEvery, Seeds: running.seeds,
		Synced: func(synced int64) error { return w.noteSynced(content.Role, synced) },
		Progress: func(now osimage.Progress) {
			if now.Stage != osimage.Surveying {
				w.scheme.written(max(0, now.Written-done)) // it goes back when all is written once more
				done = now.Written
			}

			tell(now)
		},
	})
}

// room is the size of a partition, in bytes.
func (w *writer) room(number int) int64 { return w.view.place.Kernel[number].Size }

// seeds are the parts of the running slot that a new content may share bytes with, open for reading.
type seeds struct {
	seeds []osimage.Seed
	close func() error
}

// runningSeed opens the running slot's partition for a content.
func (w *writer) runningSeed(ctx context.Context, role osimage.Role) (seeds, error) {
	number := w.view.layout.running.number(role)

	medium, err := w.scheme.host.OpenPartition(ctx, number, false)
	if err != nil {
		return seeds{}, fmt.Errorf("opening partition %d of %s: %w", number, w.view.place.Disk, err)
	}

	return seeds{
		seeds: []osimage.Seed{{Name: "the running slot", Reader: medium, Size: w.room(number)}}, close: medium.Close,
	}, nil
}

// noteSynced stores how far a content is written. From then on the image counts as not read back.
func (w *writer) noteSynced(role osimage.Role, bytes int64) error {
	if bytes > 0 && bytes == w.note.Synced[role] {
		return nil // read back only
	}

	if w.note.Synced == nil {
		w.note.Synced = map[osimage.Role]int64{}
	}

	w.note.Synced[role] = bytes
	w.note.Verified = false

	return w.scheme.saveNote(w.note)
}

// verify looks at what was not read back yet: the UKI. Then the slot can be armed.
func (w *writer) verify(ctx context.Context) error {
	content, _ := w.image.Content(osimage.RoleUKI)

	digest, err := fileDigest(ctx, w.view.files, stagedUKI, content.RawSize)
	if err != nil {
		return fmt.Errorf("reading content %s back: %w", osimage.RoleUKI, err)
	}

	if digest != content.RawDigest {
		return fmt.Errorf("reading content %s back: %w", osimage.RoleUKI, errReadBack)
	}

	if err := checkUKI(w.view.files, stagedUKI, w.image); err != nil {
		return err
	}

	w.note.Verified = true

	if err := w.scheme.saveNote(w.note); err != nil {
		return err
	}

	w.tell(osimage.Progress{Stage: osimage.Verifying, Verified: content.RawSize})

	return nil
}

func (w *writer) number(role osimage.Role) int { return w.view.number(role) }

// number is the partition of the spare slot that holds a content.
func (v *view) number(role osimage.Role) int { return v.layout.spare.number(role) }

// number is the partition of the pair that holds a content.
func (p pair) number(role osimage.Role) int {
	if role == osimage.RoleRoot || role == osimage.RoleUSR {
		return p.data.Index
	}

	return p.verity.Index
}

// readBack reads the spare slot's contents from the medium and returns the first role whose digest is wrong, "" when
// all are right. The UKI is looked for in the given file.
func (s *Scheme) readBack(ctx context.Context, v *view, image osimage.Config, uki string) (osimage.Role, error) {
	for _, role := range stagedRoles(image) {
		content, _ := image.Content(role)

		var (
			digest string
			err    error
		)

		if role == osimage.RoleUKI {
			digest, err = fileDigest(ctx, v.files, uki, content.RawSize)
		} else {
			digest, err = s.partitionDigest(ctx, v.number(role), content.RawSize)
		}

		if err != nil {
			return "", fmt.Errorf("reading content %s back: %w", role, err)
		}

		if digest != content.RawDigest {
			return role, nil
		}
	}

	return "", nil
}

func (s *Scheme) partitionDigest(ctx context.Context, number int, size int64) (digest string, err error) {
	medium, err := s.host.OpenPartition(ctx, number, false)
	if err != nil {
		return "", fmt.Errorf("opening partition %d: %w", number, err)
	}

	defer func() { err = errors.Join(err, medium.Close()) }()

	if err := medium.DropCache(); err != nil {
		return "", fmt.Errorf("dropping the cache of partition %d: %w", number, err)
	}

	return readDigest(ctx, io.NewSectionReader(medium, 0, size))
}

// fileDigest is the digest of a boot file, "" when it is absent or has another size.
func fileDigest(ctx context.Context, files BootFiles, file string, size int64) (digest string, err error) {
	open, err := files.Open(file)
	if isAbsent(err) {
		return "", nil
	}

	if err != nil {
		return "", fmt.Errorf("opening %s: %w", file, err)
	}

	defer func() { err = errors.Join(err, open.Close()) }()

	if open.Size() != size {
		return "", nil
	}

	return readDigest(ctx, io.NewSectionReader(open, 0, size))
}

// fileSize is the size of a boot file, 0 when it is absent.
func fileSize(files BootFiles, file string) (int64, error) {
	open, err := files.Open(file)
	if isAbsent(err) {
		return 0, nil
	}

	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", file, err)
	}

	return open.Size(), open.Close()
}

func readDigest(ctx context.Context, reader io.Reader) (string, error) {
	sum := sha256.New()
	if _, err := io.CopyBuffer(sum, &countingReader{ctx: ctx, reader: reader}, make([]byte, readBytes)); err != nil {
		return "", fmt.Errorf("reading: %w", err)
	}

	return digestOf(sum), nil
}

func digestOf(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

// countingReader ends with its context, and reports what was read.
type countingReader struct {
	ctx    context.Context //nolint:containedctx // it lives for one copy
	reader io.Reader
	count  func(int64)
}

// Read reads and counts.
func (c *countingReader) Read(buffer []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}

	n, err := c.reader.Read(buffer)
	if c.count != nil && n > 0 {
		c.count(int64(n))
	}

	return n, err
}
