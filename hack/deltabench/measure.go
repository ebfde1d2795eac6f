package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/stayput-dev/stayput/osimage/chunk"
)

// row is one line of the table. Sizes are in bytes, -1 for unknown.
type row struct {
	method string
	// full is what a machine without seeds fetches, index what every machine fetches besides, moved what one with the old
	// image fetches in all, the index included.
	full, index, moved int64
	requests           int
	note               string
}

// measuring is what one pair is measured with.
type measuring struct {
	old, new string
	floor    int64
	only     []string
	params   []string
	frames   []int
	gains    []int
	gaps     []int64
	work     string
	level    string
}

func newMeasureCommand() *cobra.Command {
	var (
		m     measuring
		trees []string
	)

	command := &cobra.Command{
		Use: "measure OLD NEW", Short: "Print a table for one pair of images", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			m.old, m.new = args[0], args[1]

			if len(trees) == 2 {
				if m.floor, err = floor(cmd.Context(), trees[0], trees[1]); err != nil {
					return err
				}
			}

			return m.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	m.flags(command)
	command.Flags().Int64Var(&m.floor, "floor", 0, "compressed size of what changed, in bytes")
	command.Flags().StringSliceVar(&trees, "trees", nil, "the two directory trees OLD,NEW to compute the floor of")

	return command
}

func (m *measuring) flags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringSliceVar(&m.only, "only", []string{"ours", "casync", "desync", "zsync", "rauc"}, "which methods")
	flags.StringSliceVar(&m.params, "params", []string{"auto"}, "chunk parameters to try: auto, or AVG, MIN/AVG/MAX[/ALIGN] in bytes")
	flags.IntSliceVar(&m.frames, "frame", []int{chunk.DefaultFrame}, "frame sizes to try, in raw bytes")
	flags.IntSliceVar(&m.gains, "gain", []int{0}, "what a chunk must save to join a frame, to try, in percent")
	flags.Int64SliceVar(&m.gaps, "gap", []int64{chunk.DefaultRequestCost}, "gaps to try, in bytes, -1 for none")
	flags.StringVar(&m.level, "level", "best", "effort of the zstd encoder: fastest, default, better, best (as stayput image build), "+
		"or a number for the program zstd")
	flags.StringVar(&m.work, "work", os.TempDir(), "a directory for other programs' files, as large as all images")
}

func (m *measuring) run(ctx context.Context, out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)

	info, err := os.Stat(m.new)
	if err != nil {
		return fmt.Errorf("looking at the new image: %w", err)
	}

	fmt.Fprintf(table, "%s -> %s: %s raw, floor %s\n", m.old, m.new, megabytes(info.Size()), megabytes(m.floor))
	fmt.Fprintln(table, "method\tfull\tindex\tof raw\tof full\tmoved\tx floor\trequests\t")

	for _, name := range m.only {
		method, ok := methods()[name]
		if !ok {
			return fmt.Errorf("%w: %s", errUnknown, name)
		}

		rows, err := method(ctx, m)
		if err != nil {
			fmt.Fprintf(table, "%s\t%v\n", name, err)

			continue
		}

		for _, row := range rows {
			row.print(table, info.Size(), m.floor)
		}
	}

	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing the table: %w", err)
	}

	return nil
}

type method func(ctx context.Context, m *measuring) ([]row, error)

func methods() map[string]method {
	return map[string]method{"ours": ours, "casync": casync, "desync": desync, "zsync": zsync, "rauc": rauc}
}

func (r row) print(out io.Writer, raw, floor int64) {
	ratio := "-"
	if floor > 0 {
		ratio = fmt.Sprintf("%.2f", float64(r.moved)/float64(floor))
	}

	full, share := "-", "-"
	if r.full > 0 {
		full = megabytes(r.full)
		share = fmt.Sprintf("%.2f %%", 100*float64(r.index)/float64(r.full))
	}

	fmt.Fprintf(out, "%s\t%s\t%s\t%.2f %%\t%s\t%s\t%s\t%d\t%s\n", r.method, full, megabytes(r.index),
		100*float64(r.index)/float64(raw), share, megabytes(r.moved), ratio, r.requests, r.note)
}

func megabytes(size int64) string {
	return strconv.FormatFloat(float64(size)/1e6, 'f', 2, 64) + " MB"
}

// parseParams reads AVG, or MIN/AVG/MAX[/ALIGN]; "auto" is what Stayput itself chooses.
func parseParams(text, image string) (chunk.Params, error) {
	if text == "auto" {
		return automatic(image)
	}

	var numbers []int

	for part := range strings.SplitSeq(text, "/") {
		number, err := strconv.Atoi(part)
		if err != nil {
			return chunk.Params{}, fmt.Errorf("reading parameters %q: %w", text, err)
		}

		numbers = append(numbers, number)
	}

	params := chunk.Params{Min: numbers[0] / 4, Avg: numbers[0], Max: numbers[0] * 4, Align: 1}
	if len(numbers) > 2 {
		params = chunk.Params{Min: numbers[0], Avg: numbers[1], Max: numbers[2], Align: 1}
	}

	if len(numbers) > 3 {
		params.Align = numbers[3]
	}

	return params, params.Validate()
}

func automatic(image string) (params chunk.Params, err error) {
	file, err := os.Open(image)
	if err != nil {
		return params, fmt.Errorf("opening the image: %w", err)
	}

	defer func() { _ = file.Close() }()

	info, err := file.Stat()
	if err != nil {
		return params, fmt.Errorf("finding its size: %w", err)
	}

	head := make([]byte, chunk.HeadSize)
	count, _ := io.ReadFull(file, head)

	return chunk.ParamsFor(head[:count], info.Size()), nil
}
