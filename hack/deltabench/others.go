package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// casync makes stores of small files. Its chunks are 16, 64 and 256 KiB, compressed by zstd one by one.
func casync(ctx context.Context, m *measuring) ([]row, error) {
	return m.store(ctx, "casync", func(index, store, image string) []string {
		return []string{"casync", "make", "--store=" + store, index, image}
	})
}

// desync is casync's format in Go.
func desync(ctx context.Context, m *measuring) ([]row, error) {
	return m.store(ctx, "desync", func(index, store, image string) []string {
		return []string{"desync", "make", "-s", store, index, image}
	})
}

func (m *measuring) store(ctx context.Context, name string, command func(index, store, image string) []string) ([]row, error) {
	work, err := os.MkdirTemp(m.work, name)
	if err != nil {
		return nil, fmt.Errorf("making a directory: %w", err)
	}

	defer func() { _ = os.RemoveAll(work) }()

	ids := make([][]string, 2)
	store := filepath.Join(work, "store")

	// The store holds the new image only, so that its size is that of a full download.
	for i, image := range []string{m.old, m.new} {
		if err := errors.Join(os.RemoveAll(store), os.Mkdir(store, 0o750)); err != nil {
			return nil, fmt.Errorf("making a store: %w", err)
		}

		index := filepath.Join(work, filepath.Base(image)+".caibx")
		if err := run(ctx, command(index, store, image)...); err != nil {
			return nil, err
		}

		if ids[i], err = chunksOf(index); err != nil {
			return nil, err
		}
	}

	return []row{storeRow(name, store, ids[0], ids[1], int64(len(ids[1])*40))}, nil
}

func storeRow(name, store string, old, all []string, index int64) row {
	known := map[string]bool{}
	for _, id := range old {
		known[id] = true
	}

	result := row{method: name + " 64 KiB", index: index, moved: index}
	counted := map[string]bool{}

	for _, id := range all {
		info, err := os.Stat(filepath.Join(store, id[:4], id+".cacnk"))
		if err != nil || counted[id] {
			continue
		}

		counted[id] = true
		result.full += info.Size()

		if !known[id] {
			result.moved += info.Size()
			result.requests++
		}
	}

	result.note = fmt.Sprintf("%d chunks", len(all))

	return result
}

// chunksOf reads the ids of a caibx file: a header of 48 bytes, another of 16, then items of an offset and an id.
func chunksOf(index string) ([]string, error) {
	const (
		headers = 48 + 16
		item    = 8 + 32
		tail    = 40
	)

	data, err := os.ReadFile(index)
	if err != nil {
		return nil, fmt.Errorf("reading an index: %w", err)
	}

	var ids []string

	if len(data) < headers+tail {
		return nil, fmt.Errorf("%w: %s has %d bytes", errOutput, index, len(data))
	}

	for data = data[headers : len(data)-tail]; len(data) >= item; data = data[item:] {
		if binary.LittleEndian.Uint64(data) == 0 {
			break
		}

		ids = append(ids, hex.EncodeToString(data[8:item]))
	}

	return ids, nil
}

func run(ctx context.Context, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)

	var output bytes.Buffer

	cmd.Stdout, cmd.Stderr = &output, &output

	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w: %s", command[0], err, output.Bytes()[max(0, output.Len()-500):])
	}

	return nil
}

// zsync fetches from a web server that counts: plain, and with the image compressed by gzip, which it can look into.
func zsync(ctx context.Context, m *measuring) ([]row, error) {
	var rows []row

	for _, options := range [][]string{{}, {"-z"}} {
		row, err := m.zsync(ctx, options)
		if err != nil {
			return nil, err
		}

		rows = append(rows, row)
	}

	return rows, nil
}

func (m *measuring) zsync(ctx context.Context, options []string) (row, error) {
	work, err := os.MkdirTemp(m.work, "zsync")
	if err != nil {
		return row{}, fmt.Errorf("making a directory: %w", err)
	}

	defer func() { _ = os.RemoveAll(work) }()

	image, err := filepath.Abs(m.new)
	if err != nil {
		return row{}, fmt.Errorf("finding the image: %w", err)
	}

	if err := os.Symlink(image, filepath.Join(work, "new")); err != nil {
		return row{}, fmt.Errorf("linking the image: %w", err)
	}

	served := "new"
	if len(options) > 0 {
		served = "new.gz"
	}

	command := exec.CommandContext(ctx, "zsyncmake", append(options, "-o", "new.zsync", "-u", served, "new")...)
	command.Dir = work

	if output, err := command.CombinedOutput(); err != nil {
		return row{}, fmt.Errorf("running zsyncmake: %w: %s", err, output)
	}

	full, err := os.Stat(filepath.Join(work, served))
	if err != nil {
		return row{}, fmt.Errorf("finding what is served: %w", err)
	}

	server, err := serve(ctx, work)
	if err != nil {
		return row{}, err
	}

	err = run(ctx, "zsync", "-q", "-i", m.old, "-o", filepath.Join(work, "result"), server.url+"/new.zsync")
	if err := errors.Join(err, server.close()); err != nil {
		return row{}, err
	}

	index, err := os.Stat(filepath.Join(work, "new.zsync"))
	if err != nil {
		return row{}, fmt.Errorf("finding the index: %w", err)
	}

	return row{
		method: strings.Join(append([]string{"zsync"}, options...), " "), full: full.Size(), index: index.Size(),
		moved: server.bytes, requests: server.requests,
	}, nil
}

// server serves a directory and counts what it sends.
type server struct {
	url      string
	http     *http.Server
	mu       sync.Mutex
	bytes    int64
	requests int
}

func serve(ctx context.Context, dir string) (*server, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}

	result := &server{url: "http://" + listener.Addr().String()}
	handler := http.FileServer(http.Dir(dir))
	result.http = &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			counting := &countingWriter{ResponseWriter: writer}
			handler.ServeHTTP(counting, request)

			result.mu.Lock()
			defer result.mu.Unlock()

			result.bytes += counting.size
			result.requests++
		}),
	}

	go func() { _ = result.http.Serve(listener) }()

	return result, nil
}

func (s *server) close() error {
	return s.http.Close()
}

const emptyLine = "\r\n"

type countingWriter struct {
	http.ResponseWriter

	size int64
}

// WriteHeader has an empty line go before the first of several ranges, as other servers do: zsync 0.6.2 waits for one, and
// without it asks again for ever.
func (w *countingWriter) WriteHeader(status int) {
	header := w.Header()

	length, err := strconv.Atoi(header.Get("Content-Length"))
	several := err == nil && strings.HasPrefix(header.Get("Content-Type"), "multipart/byteranges")

	if several {
		header.Set("Content-Length", strconv.Itoa(length+len(emptyLine)))
	}

	w.ResponseWriter.WriteHeader(status)

	if several {
		_, _ = io.WriteString(w, emptyLine) // an error comes again with the body
	}
}

func (w *countingWriter) Write(data []byte) (int, error) {
	count, err := w.ResponseWriter.Write(data)
	w.size += int64(count)

	return count, err
}

const (
	raucChunk = 4096
	// raucBlock is the block size of a bundle's squashfs that RAUC's manual recommends for adaptive updates.
	raucBlock = 64 << 10
)

// rauc follows the rules of the block-hash-index adaptive method: chunks of 4096 bytes at multiples of 4096, found by
// their SHA-256 in the old image, 32 bytes of index a chunk. Missing chunks are read from the image inside the bundle, a
// squashfs, whose compressed blocks come over the network as a whole. The blocks are compressed here as a bundle made with
// zstd would have them; what its metadata costs is left out.
func rauc(ctx context.Context, m *measuring) ([]row, error) {
	known := map[content]bool{}

	err := eachBlock(ctx, m.old, raucChunk, func(block []byte) error {
		known[sha256.Sum256(block)] = true

		return nil
	})
	if err != nil {
		return nil, err
	}

	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("starting the zstd encoder: %w", err)
	}

	result := row{method: "rauc block-hash-index"}
	run := false

	err = eachBlock(ctx, m.new, raucBlock, func(block []byte) error {
		packed := int64(min(len(encoder.EncodeAll(block, nil)), len(block)))
		result.full += packed

		missing := false

		for len(block) > 0 {
			count := min(raucChunk, len(block))
			missing = missing || !known[sha256.Sum256(block[:count])]
			block = block[count:]
			result.index += sha256.Size
		}

		if missing {
			result.moved += packed
			if !run {
				result.requests++
			}
		}

		run = missing

		return nil
	})
	result.moved += result.index

	return []row{result}, errors.Join(err, encoder.Close())
}

func eachBlock(ctx context.Context, image string, size int, each func(block []byte) error) error {
	file, err := os.Open(image)
	if err != nil {
		return fmt.Errorf("opening an image: %w", err)
	}

	defer func() { _ = file.Close() }()

	block := make([]byte, size)

	for ctx.Err() == nil {
		count, err := io.ReadFull(file, block)
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("reading an image: %w", err)
		}

		if err := each(block[:count]); err != nil {
			return err
		}
	}

	return context.Cause(ctx)
}
