package disk

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/osimage"
)

// QCOW2 version 3 as QEMU's docs/interop/qcow2.rst describes it; numbers are big-endian. What is written here is its
// simplest form: no backing file, no snapshots, no compression, and no optional features, so every reader takes it.
//
// The file is: header, clusters with data, L2 tables, L1 table, refcount table, refcount blocks. So it is written from
// its start to its end but for the header, and the same disk gives the same bytes.
const (
	qcowMagic        = "QFI\xfb"
	qcowVersion      = 3
	qcowHeaderLength = 104
	clusterBits      = 16
	clusterSize      = 1 << clusterBits
	// perTable is the number of entries, of 8 bytes each, of an L2 table; a table fills a cluster.
	perTable = clusterSize / 8
	// refcountOrder makes refcounts of 16 bits; perRefcountBlock of them fill a cluster.
	refcountOrder    = 4
	perRefcountBlock = clusterSize / 2
	// copied says in an L1 or L2 entry that the refcount is exactly one.
	copied = 1 << 63
)

// qcowWriter is a file while it is written. Positions are numbers of clusters.
type qcowWriter struct {
	writer *bufio.Writer
	// next is where the writer is.
	next uint64
	// tables are the L2 tables, nil for those without data.
	tables []*[perTable]uint64
}

// convert writes what is in a raw disk to a new file in the format QCOW2, and reads its data back. The file is open
// and flushed; after an error there is none.
func convert(ctx context.Context, raw *os.File, name string) (*os.File, error) {
	out, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return nil, fmt.Errorf("making the QCOW2 file: %w", err)
	}

	err = errors.Join(out.Chmod(fileMode), writeQCOW2(ctx, raw, out))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("writing the QCOW2 file: %w", err), osimage.RemoveFile(name), out.Close())
	}

	return out, nil
}

func writeQCOW2(ctx context.Context, raw, out *os.File) error {
	info, err := raw.Stat()
	if err != nil {
		return err
	}

	size := info.Size()
	made := &qcowWriter{
		writer: bufio.NewWriterSize(out, copySize), next: 1,
		tables: make([]*[perTable]uint64, (size+clusterSize*perTable-1)/(clusterSize*perTable)),
	}

	// The header comes last: until then the file is none.
	if _, err := made.writer.Write(make([]byte, clusterSize)); err != nil {
		return err
	}

	sum, err := made.writeData(ctx, raw, size)
	if err != nil {
		return err
	}

	end := made.next

	header, err := made.writeTables(uint64(size)) //nolint:gosec // A size is positive.
	if err != nil {
		return err
	}

	if _, err := out.WriteAt(header, 0); err != nil {
		return err
	}

	return checkData(ctx, out, int64(end), sum) //nolint:gosec // A file has far fewer clusters.
}

// writeData copies the clusters that are not zero and returns the checksum of them all.
func (q *qcowWriter) writeData(ctx context.Context, raw *os.File, size int64) (string, error) {
	sum := sha256.New()
	target := io.MultiWriter(q.writer, sum)
	zeros, buffer := make([]byte, clusterSize), make([]byte, clusterSize)

	for at := int64(0); at < size; at += clusterSize {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}

		next, err := nextData(raw, at, size)
		if err != nil {
			return "", err
		}

		if at = next / clusterSize * clusterSize; at >= size {
			break
		}

		clear(buffer)

		if _, err := raw.ReadAt(buffer[:min(clusterSize, size-at)], at); err != nil {
			return "", fmt.Errorf("reading the raw disk: %w", err)
		}

		if bytes.Equal(buffer, zeros) {
			continue
		}

		if _, err := target.Write(buffer); err != nil {
			return "", err
		}

		q.refer(at / clusterSize)
	}

	return hex.EncodeToString(sum.Sum(nil)), nil
}

// refer notes that a cluster of the disk is at the writer's position, and moves on.
func (q *qcowWriter) refer(cluster int64) {
	table := &q.tables[cluster/perTable]
	if *table == nil {
		*table = new([perTable]uint64)
	}

	(*table)[cluster%perTable] = q.next<<clusterBits | copied
	q.next++
}

// nextData is the first byte from at on that is not in a hole of a sparse file; size when all are.
func nextData(raw *os.File, at, size int64) (int64, error) {
	next, err := unix.Seek(int(raw.Fd()), at, unix.SEEK_DATA)

	switch {
	case errors.Is(err, unix.ENXIO):
		return size, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return at, nil // The file system does not know holes.
	case err != nil:
		return 0, fmt.Errorf("looking for data in the raw disk: %w", err)
	default:
		return next, nil
	}
}

// writeTables writes everything behind the data and returns the header.
func (q *qcowWriter) writeTables(size uint64) ([]byte, error) {
	directory := make([]uint64, len(q.tables))

	for index, table := range q.tables {
		if table == nil {
			continue
		}

		directory[index] = q.next<<clusterBits | copied

		if err := q.writeNumbers(table[:]); err != nil {
			return nil, err
		}
	}

	l1 := q.next
	if err := q.writeNumbers(directory); err != nil {
		return nil, err
	}

	refcounts, length, err := q.writeRefcounts()
	if err != nil {
		return nil, err
	}

	if err := q.writer.Flush(); err != nil {
		return nil, err
	}

	header := make([]byte, qcowHeaderLength)
	copy(header, qcowMagic)
	binary.BigEndian.PutUint32(header[4:], qcowVersion)
	binary.BigEndian.PutUint32(header[20:], clusterBits)
	binary.BigEndian.PutUint64(header[24:], size)
	binary.BigEndian.PutUint32(header[36:], uint32(len(directory))) //nolint:gosec // maxSize makes it at most 2^21.
	binary.BigEndian.PutUint64(header[40:], l1<<clusterBits)
	binary.BigEndian.PutUint64(header[48:], refcounts<<clusterBits)
	binary.BigEndian.PutUint32(header[56:], uint32(length)) //nolint:gosec // As above.
	binary.BigEndian.PutUint32(header[96:], refcountOrder)
	binary.BigEndian.PutUint32(header[100:], qcowHeaderLength)

	return header, nil
}

// writeNumbers writes a table and zeros up to the next cluster.
func (q *qcowWriter) writeNumbers(numbers []uint64) error {
	data := make([]byte, (len(numbers)+perTable-1)/perTable*clusterSize)

	for index, number := range numbers {
		binary.BigEndian.PutUint64(data[8*index:], number)
	}

	q.next += uint64(len(data) / clusterSize)
	_, err := q.writer.Write(data)

	return err
}

// writeRefcounts writes the refcount table and the blocks, which count themselves, too: every cluster is used once.
// It returns where the table is and its length in clusters.
func (q *qcowWriter) writeRefcounts() (table, length uint64, err error) {
	var blocks uint64

	// The fixed point is near: a block counts 32768 clusters, a cluster of the table has 8192 blocks.
	for {
		total := q.next + length + blocks
		wantBlocks := (total + perRefcountBlock - 1) / perRefcountBlock
		wantLength := (wantBlocks + perTable - 1) / perTable

		if wantBlocks == blocks && wantLength == length {
			break
		}

		blocks, length = wantBlocks, wantLength
	}

	table = q.next
	total := table + length + blocks
	places := make([]uint64, blocks)

	for index := range places {
		places[index] = (table + length + uint64(index)) << clusterBits
	}

	if err := q.writeNumbers(places); err != nil {
		return 0, 0, err
	}

	block := make([]byte, clusterSize)

	for index := range blocks * perRefcountBlock {
		place := 2 * (index % perRefcountBlock)
		binary.BigEndian.PutUint16(block[place:], 0)

		if index < total {
			binary.BigEndian.PutUint16(block[place:], 1)
		}

		if index%perRefcountBlock == perRefcountBlock-1 {
			if _, err := q.writer.Write(block); err != nil {
				return 0, 0, err
			}
		}
	}

	return table, length, nil
}

// checkData reads the clusters with data back from the medium, as is done with raw disks.
func checkData(ctx context.Context, out *os.File, end int64, want string) error {
	if err := out.Sync(); err != nil {
		return err
	}

	// Only advice: a file system that keeps its cache makes the check weaker, and nothing wrong.
	_ = unix.Fadvise(int(out.Fd()), 0, 0, unix.FADV_DONTNEED)

	got, err := sumOfSection(ctx, io.NewSectionReader(out, clusterSize, (end-1)*clusterSize))
	if err != nil {
		return fmt.Errorf("reading it back: %w", err)
	}

	if got != want {
		return &osimage.Error{
			Kind: osimage.ErrWrongDigest, Subject: out.Name(),
			Detail: fmt.Sprintf("the medium returns data with the SHA-256 %s, %s was written", got, want),
			Fix:    "check the disk that it is on, and write to another one",
		}
	}

	return nil
}
