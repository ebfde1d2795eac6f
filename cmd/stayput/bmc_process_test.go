package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/stayput-dev/stayput/bmc/fault"
	"github.com/stayput-dev/stayput/bmc/fault/simulator"
)

// asProgram makes the test binary be the command.
const asProgram = "STAYPUT_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// programBench runs the command as a process of its own, against a simulated BMC that takes its time.
type programBench struct {
	*testing.T

	bmc *fault.BMC
	dir string
	// acted is told each action.
	acted chan string
}

func newProgramBench(t *testing.T) *programBench {
	t.Helper()
	profile := simulator.LenovoXCC()
	profile.Reset.Latency = time.Second
	server, err := fault.Start(fault.Options{BMC: simulator.Options{Profile: profile, Username: bmcUser, Password: bmcPassword}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	b := &programBench{T: t, bmc: server, dir: t.TempDir(), acted: make(chan string, 10)}
	server.Simulator.OnAct(func(act simulator.Act) { b.acted <- act.Type })
	text := "username: " + bmcUser + "\npassword: " + bmcPassword + "\n"
	if err := os.WriteFile(filepath.Join(b.dir, "credentials.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return b
}

func (b *programBench) command(words ...string) *exec.Cmd {
	b.Helper()
	executable, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	words = append([]string{"bmc"}, words...)
	command := exec.CommandContext(b.Context(), executable, words...)
	command.Env = append(os.Environ(), asProgram+"=1")

	return command
}

// target is the simulated machine, with credentials.
func (b *programBench) target() []string {
	return []string{b.bmc.Address(b.bmc.IDs()[0]), "--credentials-file", filepath.Join(b.dir, "credentials.yaml")}
}

func (b *programBench) cycle(more ...string) *exec.Cmd {
	b.Helper()

	return b.command(append(append([]string{"reset", "--cycle"}, b.target()...), more...)...)
}

// await waits for an action.
func (b *programBench) await(action string) {
	b.Helper()
	select {
	case got := <-b.acted:
		if got != action {
			b.Fatalf("the BMC was told %s, not %s", got, action)
		}
	case <-b.Context().Done():
		b.Fatal("the BMC was told nothing")
	}
}

// ended checks what a command has left.
func (b *programBench) ended(err error, code int, power string, actions ...string) {
	b.Helper()
	got := 0
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		got = failed.ExitCode()
	} else if err != nil {
		b.Fatal(err)
	}
	state, counts := b.bmc.Simulator.State(b.bmc.IDs()[0]), b.bmc.Simulator.Counts()
	acts := b.bmc.Simulator.Acts()
	told := make([]string, 0, len(acts))
	for _, act := range acts {
		told = append(told, act.Type)
	}
	if got != code || state.Power != power || counts.Sessions != 0 || counts.Logins == 0 || !slices.Equal(told, actions) {
		b.Errorf("exit code %d, want %d; power %s, want %s; %d sessions of %d; told %v, want %v",
			got, code, state.Power, power, counts.Sessions, counts.Logins, told, actions)
	}
}

// Who reads no further does not end a command between off and on.
func TestProgramKeepsOnWhenNobodyReads(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	command := b.cycle()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout, command.Stderr = writer, writer
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	line, err := bufio.NewReader(reader).ReadString('\n')
	if err != nil || !strings.Contains(line, "ForceOff") {
		t.Errorf("%q, %v", line, err)
	}
	_ = reader.Close()
	b.ended(command.Wait(), 0, "On", "ForceOff", "On")
}

// A reading command ends as others do, and leaves no session.
func TestProgramReadsForNobody(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	command := b.command(append([]string{"status"}, b.target()...)...)
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	command.Stdout, command.Stderr = writer, &said
	_ = reader.Close()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	b.ended(command.Wait(), exitBrokenPipe, "On")
	if said.Len() > 0 {
		t.Errorf("it said %q", &said)
	}
}

// A terminal that is gone, and a polite end, do not end a command between off and on.
func TestProgramFinishesACycle(t *testing.T) {
	t.Parallel()
	for name, signals := range map[string][]syscall.Signal{
		"SIGHUP":  {syscall.SIGHUP, syscall.SIGHUP},
		"SIGINT":  {syscall.SIGINT},
		"SIGTERM": {syscall.SIGTERM, syscall.SIGTERM},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newProgramBench(t)
			command := b.cycle()
			var said bytes.Buffer
			command.Stderr = &said
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			b.await("ForceOff")
			for _, each := range signals {
				if err := command.Process.Signal(each); err != nil {
					t.Fatal(err)
				}
			}
			b.ended(command.Wait(), exitInterrupted, "On", "ForceOff", "On")
			if !strings.Contains(said.String(), finishing) || !strings.Contains(said.String(), errFinished.Error()) {
				t.Error(said.String())
			}
		})
	}
}

// Under nohup a lost terminal is nothing at all.
func TestProgramUnderNohup(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	inner := b.cycle()
	command := exec.CommandContext(t.Context(), "sh", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`}, inner.Args...)...)
	command.Env = inner.Env
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	b.await("ForceOff")
	if err := command.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	b.ended(command.Wait(), 0, "On", "ForceOff", "On")
	if strings.Contains(said.String(), finishing) {
		t.Error(said.String())
	}
}

// A second interrupt ends it, tells what is left, and leaves no session.
func TestProgramIsStoppedByASecondInterrupt(t *testing.T) {
	t.Parallel()
	b := newProgramBench(t)
	b.bmc.Simulator.Configure(func(profile *simulator.Profile) { profile.Reset.Stuck = true })
	command := b.cycle()
	var said bytes.Buffer
	pipe, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	b.await("ForceOff")
	first := time.Now()
	if err := command.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(pipe)
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), finishing) {
			// A second one within a second is the same one.
			<-time.After(sameInterrupt + 100*time.Millisecond - time.Since(first))
			if err := command.Process.Signal(os.Interrupt); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.ended(command.Wait(), exitInterrupted, "On", "ForceOff")
	want := "nobody switches it on now: switch it on: `stayput bmc power " + b.target()[0] + " on --credentials-file=" + b.target()[2] + "`\n"
	if !strings.HasSuffix(said.String(), want) {
		t.Errorf("it said %s, want %s", said.String(), want)
	}
}

// terminal is a new one: what a person types into, and what the program sees.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() })
	control, err := person.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	var failed error
	err = control.Control(func(fd uintptr) {
		number, failed = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		failed = errors.Join(failed, unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0))
	})
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	program, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })

	return person, program
}

func echoes(t *testing.T, program *os.File) bool {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(program.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}

	return state.Lflag&unix.ECHO != 0
}

// Ctrl-C at either question ends the command at once, and what is typed afterwards is seen again.
func TestProgramIsInterruptedAtThePrompt(t *testing.T) {
	t.Parallel()
	for _, question := range []string{"User name at the BMC: ", "Password: "} {
		t.Run(question, func(t *testing.T) {
			t.Parallel()
			b := newProgramBench(t)
			person, program := terminal(t)
			command := b.command("status", b.target()[0])
			command.Stdin, command.Stdout, command.Stderr = program, program, program
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			defer context.AfterFunc(ctx, func() { _ = command.Process.Kill() })()
			shown := make([]byte, 1)
			var said bytes.Buffer
			for !strings.HasSuffix(said.String(), question) {
				if _, err := io.ReadFull(person, shown); err != nil {
					t.Fatal(err, said.String())
				}
				said.Write(shown)
				if strings.HasSuffix(said.String(), "User name at the BMC: ") && question == "Password: " {
					if _, err := person.WriteString("admin\n"); err != nil {
						t.Fatal(err)
					}
				}
			}
			for question == "Password: " && echoes(t, program) && ctx.Err() == nil {
				<-time.After(time.Millisecond)
			}
			if _, err := person.WriteString("\x03"); err != nil {
				t.Fatal(err)
			}
			err := command.Wait()
			if failed, ok := errors.AsType[*exec.ExitError](err); !ok || failed.ExitCode() != exitInterrupted {
				t.Errorf("it ended with %v", err)
			}
			if !echoes(t, program) {
				t.Error("the terminal shows nothing that is typed")
			}
		})
	}
}
