package chunk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	zstdProgram = "zstd"
	// LeastLevel is the lowest of the zstd program's levels (zstd(1)).
	LeastLevel = 1
	// GreatestLevel is the highest one, with "--ultra".
	GreatestLevel = 22
	// ultraLevel is the first one that the program must be told that it is meant.
	ultraLevel = 20
	// maxComplaint bounds what is quoted of the program's messages, in bytes.
	maxComplaint = 300
)

// Errors of Program.
var (
	// ErrNoProgram is returned when there is no program zstd in the PATH.
	ErrNoProgram = errors.New("the program zstd is not installed")
	// ErrLevel is returned for a level that zstd does not have.
	ErrLevel = errors.New("zstd has no such level")
	// ErrProgram is returned when the program fails, or makes something else than a frame with the given bytes.
	ErrProgram = errors.New("the program zstd did not compress")
)

// Program compresses by the program zstd. It has stronger levels than the encoder that is built in, whose strongest is
// about its 9, and takes several times as long.
type Program struct {
	path  string
	level int
	// check unpacks what the program made: it could be any.
	check *zstd.Decoder
}

// FindProgram looks for the program in the PATH. The level is one of LeastLevel to GreatestLevel.
func FindProgram(level int) (*Program, error) {
	if level < LeastLevel || level > GreatestLevel {
		return nil, fmt.Errorf("%w: %d, want %d to %d", ErrLevel, level, LeastLevel, GreatestLevel)
	}

	path, err := exec.LookPath(zstdProgram)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoProgram, err)
	}

	check, err := zstd.NewReader(nil, zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(MaxFrame))
	if err != nil {
		return nil, fmt.Errorf("starting the zstd decoder: %w", err)
	}

	return &Program{path: path, level: level, check: check}, nil
}

// compress appends one frame with the bytes.
func (p *Program) compress(ctx context.Context, raw, packed []byte) ([]byte, error) {
	// The size is in the frame's header then, as the built-in encoder writes it.
	arguments := []string{
		"-" + strconv.Itoa(p.level), "--quiet", "--single-thread", "--stream-size=" + strconv.Itoa(len(raw)), "--stdout",
	}
	if p.level >= ultraLevel {
		arguments = append(arguments, "--ultra")
	}

	var frame, complaint bytes.Buffer

	command := exec.CommandContext(ctx, p.path, arguments...)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(raw), &frame, &complaint

	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			return packed, context.Cause(ctx)
		}

		said := strings.TrimSpace(complaint.String())

		return packed, fmt.Errorf("%w: %s %s: %w: %q", ErrProgram, p.path, strings.Join(arguments, " "), err, said[:min(len(said), maxComplaint)])
	}

	unpacked, err := p.check.DecodeAll(frame.Bytes(), make([]byte, 0, len(raw)))

	switch {
	case err != nil:
		return packed, fmt.Errorf("%w: what %s made cannot be unpacked: %w", ErrProgram, p.path, err)
	case !bytes.Equal(unpacked, raw):
		return packed, fmt.Errorf("%w: what %s made has not the %d bytes that it was given", ErrProgram, p.path, len(raw))
	}

	return append(packed, frame.Bytes()...), nil
}
