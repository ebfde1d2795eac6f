package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
)

const (
	dirMode  = 0o700
	fileMode = 0o600

	// pollInterval is how often a process that was told to stop is looked at.
	pollInterval = 20 * time.Millisecond
	// killWait bounds the wait for a process after SIGKILL; only one in uninterruptible sleep needs longer.
	killWait = 10 * time.Second

	pidSuffix = ".pid"
	logSuffix = ".log"
)

// Serving is the priority of what the machines of a lab wait for. It goes before them: an API server that gets no processor
// loses its leases.
const Serving = -15

// ErrGone means that the process is not running: it ended, or the machine was started anew since.
var ErrGone = errors.New("process is not running")

// Spec says what to start.
type Spec struct {
	// Name is the base name of the pid and log files; unique in its directory.
	Name string
	// Path is the program, Args its arguments without the program's name.
	Path string
	Args []string
	// Env is added to this process's environment.
	Env []string
	// WorkDir is its working directory; "" means the directory of the pid file.
	WorkDir string
	// Priority is the nice value of the process's session; see Prioritize.
	Priority int
}

// Process is a process that was started here, by this command or an earlier one.
type Process struct {
	dir    string
	record record
	// exited is closed when the process has ended; nil when it was started by another command.
	exited chan struct{}
}

// record is what the pid file holds. Start ticks and boot ID tell the process from a later one with the same PID.
type record struct {
	Name       string `json:"name"`
	PID        int    `json:"pid"`
	StartTicks uint64 `json:"startTicks"` // clock ticks since boot: field 22 of /proc/PID/stat, see proc(5)
	BootID     string `json:"bootID"`
	Program    string `json:"program"`
}

// Start starts the process in a session of its own, with its output appended to NAME.log, and writes NAME.pid.
func Start(dir string, spec Spec) (*Process, error) {
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, fmt.Errorf("making the directory of %s: %w", spec.Name, err)
	}

	log, err := os.OpenFile(filepath.Join(dir, spec.Name+logSuffix), os.O_CREATE|os.O_APPEND|os.O_WRONLY, fileMode)
	if err != nil {
		return nil, fmt.Errorf("opening the log of %s: %w", spec.Name, err)
	}
	defer log.Close()

	// No CommandContext: the process is meant to live longer than the call.
	cmd := exec.Command(spec.Path, spec.Args...) //nolint:noctx // see above
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = spec.WorkDir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	if cmd.Dir == "" {
		cmd.Dir = dir
	}

	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", spec.Name, err)
	}

	if spec.Priority != 0 {
		Prioritize(cmd.Process.Pid, spec.Priority)
	}

	process := &Process{dir: dir, exited: make(chan struct{})}

	go func() {
		_ = cmd.Wait()

		close(process.exited)
	}()

	if err := process.identify(spec, cmd.Process.Pid); err != nil {
		_ = cmd.Process.Kill()

		return nil, fmt.Errorf("recording %s: %w; its log is %s", spec.Name, err, process.LogFile(spec.Name))
	}

	return process, nil
}

// Prioritize gives the session of a process a nice value, from -20 to 19, which the kernel weighs against other sessions
// (autogroup, sched(7)). A kernel without autogroup needs none.
func Prioritize(pid, nice int) {
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "autogroup"), []byte(strconv.Itoa(nice)), 0)
}

func (p *Process) identify(spec Spec, pid int) error {
	stat, err := readStat(pid)
	if err != nil {
		return err
	}

	boot, err := bootID()
	if err != nil {
		return err
	}

	p.record = record{Name: spec.Name, PID: pid, StartTicks: stat.startTicks, BootID: boot, Program: spec.Path}

	data, err := json.Marshal(p.record)
	if err != nil {
		return fmt.Errorf("encoding the pid file: %w", err)
	}

	if err := renameio.WriteFile(p.pidFile(), data, fileMode); err != nil {
		return fmt.Errorf("writing the pid file: %w", err)
	}

	return nil
}

// Open finds a process that was started earlier. The error wraps ErrGone when there is no pid file.
func Open(dir, name string) (*Process, error) {
	data, err := os.ReadFile(filepath.Join(dir, name+pidSuffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: no pid file: %w", name, ErrGone)
	}

	if err != nil {
		return nil, fmt.Errorf("reading the pid file of %s: %w", name, err)
	}

	process := &Process{dir: dir}
	if err := json.Unmarshal(data, &process.record); err != nil {
		return nil, fmt.Errorf("reading the pid file of %s: %w", name, err)
	}

	return process, nil
}

// All finds every process that has a pid file in the directory, dead ones too.
func All(dir string) ([]*Process, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+pidSuffix))
	if err != nil {
		return nil, fmt.Errorf("listing pid files: %w", err)
	}

	processes := make([]*Process, 0, len(files))

	for _, file := range files {
		process, err := Open(dir, strings.TrimSuffix(filepath.Base(file), pidSuffix))
		if err != nil {
			return nil, err
		}

		processes = append(processes, process)
	}

	return processes, nil
}

// Name is the name that it was started under.
func (p *Process) Name() string { return p.record.Name }

// PID is its process ID.
func (p *Process) PID() int { return p.record.PID }

// Alive tells whether it still runs. A zombie does not.
func (p *Process) Alive() bool {
	stat, err := readStat(p.record.PID)
	if err != nil || stat.state == 'Z' || stat.state == 'X' || stat.startTicks != p.record.StartTicks {
		return false
	}

	boot, err := bootID()

	return err == nil && boot == p.record.BootID
}

// Stop sends SIGTERM, waits for grace, then kills the whole session, and removes the pid file. It is safe to repeat.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.signalAndWait(ctx, syscall.SIGTERM, grace); err != nil {
		if err := p.signalAndWait(ctx, syscall.SIGKILL, killWait); err != nil {
			return fmt.Errorf("stopping %s (PID %d): %w", p.record.Name, p.record.PID, err)
		}
	}

	if err := os.Remove(p.pidFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the pid file of %s: %w", p.record.Name, err)
	}

	return nil
}

// Kill ends the process as a crash would: SIGKILL at once. The pid file goes.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.signalAndWait(ctx, syscall.SIGKILL, killWait); err != nil {
		return fmt.Errorf("killing %s (PID %d): %w", p.record.Name, p.record.PID, err)
	}

	return p.Stop(ctx, 0)
}

func (p *Process) signalAndWait(ctx context.Context, signal syscall.Signal, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	if patience > 0 && p.Alive() {
		target := p.record.PID
		if signal == syscall.SIGKILL {
			target = -target // the process leads its own group, so its children go with it
		}

		if err := syscall.Kill(target, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("sending %s: %w", signal, err)
		}
	}

	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	for p.Alive() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting after %s: %w", signal, ctx.Err())
		case <-ticker.C:
		}
	}

	return nil
}

// Exited is closed when the process has ended; nil, which never yields, when another command started it.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// LogFile is the path of the log of the process of that name beside this one; "" means this one's.
func (p *Process) LogFile(name string) string {
	if name == "" {
		name = p.record.Name
	}

	return filepath.Join(p.dir, name+logSuffix)
}

// tailBytes is how much of a log Tail reads at most.
const tailBytes = 16 << 10

// Tail is the last lines of its log, for an error message.
func (p *Process) Tail(lines int) string {
	data, err := readEnd(p.LogFile(""), tailBytes)
	if err != nil {
		return err.Error()
	}

	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}

	return strings.Join(all, "\n")
}

func (p *Process) pidFile() string { return filepath.Join(p.dir, p.record.Name+pidSuffix) }

func readEnd(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
	}
	defer file.Close()

	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the log's size: %w", err)
	}

	size := min(info.Size(), limit)
	data := make([]byte, size)

	n, err := file.ReadAt(data, info.Size()-size)
	if err != nil && n == 0 && size > 0 {
		return nil, fmt.Errorf("reading the log: %w", err)
	}

	return data[:n], nil
}

type procStat struct {
	state      byte
	startTicks uint64
}

// Fields of /proc/PID/stat after the parenthesised command name, which may itself hold spaces; see proc(5).
const (
	statState      = 0
	statStartTicks = 19
)

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, fmt.Errorf("%w: %w", ErrGone, err)
	}

	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) <= statStartTicks {
		return procStat{}, fmt.Errorf("/proc/%d/stat has %d fields after the name: %w", pid, len(fields), ErrGone)
	}

	ticks, err := strconv.ParseUint(fields[statStartTicks], 10, 64)
	if err != nil {
		return procStat{}, fmt.Errorf("reading the start time of PID %d: %w", pid, err)
	}

	return procStat{state: fields[statState][0], startTicks: ticks}, nil
}

func bootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot ID: %w", err)
	}

	return strings.TrimSpace(string(data)), nil
}
