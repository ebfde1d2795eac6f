package memory

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Release returns free heap to the system, and the pages of the program itself, of which the kernel maps 16 around
// each that is touched; those that are needed again are read from the file. It takes some milliseconds. An error
// means that the pages of the program stay (MADV_PAGEOUT came with Linux 5.4).
func Release() error {
	debug.FreeOSMemory()

	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding the program's file: %w", err)
	}

	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("listing what is mapped: %w", err)
	}
	defer maps.Close()

	lines := bufio.NewScanner(maps)
	for lines.Scan() {
		start, end, ok := unchanged(lines.Text(), program)
		if !ok {
			continue
		}

		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, start, end-start, unix.MADV_PAGEOUT); errno != 0 {
			return fmt.Errorf("giving the pages of %s back: %w", program, errno)
		}
	}

	if err := lines.Err(); err != nil {
		return fmt.Errorf("listing what is mapped: %w", err)
	}

	return nil
}

// unchanged reads a line of /proc/PID/maps, "start-end perms offset device inode path" as in proc_pid_maps(5), and tells
// whether it is a part of the program that cannot be written.
func unchanged(line, program string) (start, end uintptr, ok bool) {
	const pathField, fields = 5, 6

	words := strings.Fields(line)
	if len(words) != fields || words[pathField] != program || strings.Contains(words[1], "w") {
		return 0, 0, false
	}

	from, to, found := strings.Cut(words[0], "-")
	first, firstErr := strconv.ParseUint(from, 16, strconv.IntSize)
	last, lastErr := strconv.ParseUint(to, 16, strconv.IntSize)

	return uintptr(first), uintptr(last), found && firstErr == nil && lastErr == nil && first < last
}
