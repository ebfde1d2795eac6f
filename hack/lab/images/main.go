// Command images builds the lab's operating systems and prints the folder of each: one argument a version, such as
// 1.0.0 or 1.2.0-panic.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/stayput-dev/stayput/test/lab/osbuild"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	userCache, err := os.UserCacheDir()
	if err != nil {
		return fmt.Errorf("finding the cache folder: %w", err)
	}

	cache := flag.String("cache", filepath.Join(userCache, "stayput-lab"), "folder of the lab's finished pieces")
	state := flag.String("state", "", "folder of files to add to the persistent root")

	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: images [flags] VERSION[-FAULT]...\nFAULT is one of %q.\n", osbuild.Faults())
		flag.PrintDefaults()
	}
	flag.Parse()

	inputs := osbuild.DefaultInputs(*cache)
	inputs.StateDir = *state
	inputs.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }

	for _, name := range flag.Args() {
		version, fault, _ := strings.Cut(name, "-")

		image, err := osbuild.Build(ctx, inputs, osbuild.Variant{Version: version, Fault: osbuild.Fault(fault)})
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}

		fmt.Println(image.Dir)
	}

	return nil
}
