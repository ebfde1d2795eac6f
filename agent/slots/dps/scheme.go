package dps

import (
	"context"
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
	"github.com/stayput-dev/stayput/api/v1alpha1"
	"github.com/stayput-dev/stayput/osimage"
)

// Options are what the scheme works with.
type Options struct {
	// Host opens the machine's disk and boot partition. Default: the machine that this runs on.
	Host Host
	// Variables are the boot loader's. The zero value is replaced by those of the running machine.
	Variables boot.Variables
	// StateDir is where the note about staging is kept. It has to be outside the slots.
	StateDir string
	// Architecture is a GOARCH. Default: that of this program.
	Architecture string
	// Written is called with the number of bytes each time some were written to the spare slot or as a boot file. The
	// few bytes of partition table are not counted: they are names. May be nil.
	Written func(bytes int64)
}

// Scheme is the scheme dps.
type Scheme struct {
	host         Host
	variables    boot.Variables
	stateDir     string
	architecture string
	written      func(int64)
	// syncEvery is how many bytes are written between two syncs.
	syncEvery int64
}

var _ slots.Scheme = (*Scheme)(nil)

// New makes the scheme. It looks at nothing yet: a machine that is not of this scheme is refused by the methods.
func New(options Options) *Scheme {
	scheme := &Scheme{
		host: options.Host, variables: options.Variables, stateDir: options.StateDir,
		architecture: options.Architecture, written: options.Written, syncEvery: syncBytes,
	}

	if scheme.host == nil {
		scheme.host = NewSystem("")
	}

	if scheme.variables == (boot.Variables{}) {
		scheme.variables = boot.NewVariables("")
	}

	if scheme.architecture == "" {
		scheme.architecture = runtime.GOARCH
	}

	if scheme.written == nil {
		scheme.written = func(int64) {}
	}

	return scheme
}

// Name is "dps".
func (s *Scheme) Name() string { return osimage.SchemeDPS }

// view is one look at the machine. The boot partition stays open until the view is closed.
type view struct {
	place    Place
	layout   layout
	files    BootFiles
	entries  []entry
	unusable []string
	outrank  string
	state    slots.State
}

// look observes everything. The caller closes the view.
func (s *Scheme) look(ctx context.Context) (view, error) {
	v, err := s.lookAtDisk(ctx)
	if err != nil {
		return view{}, err
	}

	if v.files, err = s.host.OpenBoot(ctx, v.layout.esp.Index); err != nil {
		return view{}, fmt.Errorf("opening the boot partition: %w", err)
	}

	if err = s.lookAtBoot(&v); err != nil {
		return view{}, errors.Join(err, v.files.Close())
	}

	return v, nil
}

func (s *Scheme) lookAtDisk(ctx context.Context) (view, error) {
	place, err := s.host.Find(ctx)
	if err != nil {
		return view{}, fmt.Errorf("finding the running slot: %w", err)
	}

	espUUID, err := s.variables.Text(boot.LoaderDevicePartUUID)
	if errors.Is(err, boot.ErrNoVariable) {
		return view{}, slots.Refuse(v1alpha1.ReasonSchemeUnsupported, "EFI variable %s is absent: the machine was not started "+
			"by systemd-boot in UEFI mode", boot.LoaderDevicePartUUID)
	}

	if err != nil {
		return view{}, fmt.Errorf("finding the boot partition: %w", err)
	}

	disk, err := s.host.OpenDisk(ctx, false)
	if err != nil {
		return view{}, fmt.Errorf("opening disk %s: %w", place.Disk, err)
	}

	table, err := readPartitions(disk, place)
	if err = errors.Join(err, disk.Close()); err != nil {
		return view{}, err
	}

	found, err := layoutOf(table, place, s.architecture, espUUID)

	return view{place: place, layout: found}, err
}

func (s *Scheme) lookAtBoot(v *view) error {
	var err error

	if v.entries, v.unusable, err = listEntries(v.files); err != nil {
		return err
	}

	if v.outrank, err = outranks(v.files, s.variables); err != nil {
		return err
	}

	return s.assess(v)
}

// assess puts the state together.
func (s *Scheme) assess(v *view) error {
	v.state.Running = v.slot(v.layout.running, v.runningHash())
	v.state.Spare = v.slot(v.layout.spare, v.layout.spare.rootHash())

	var err error
	if v.state.Spare.Staged, err = s.stagedHash(v); err != nil {
		return err
	}

	counted, err := s.variables.Text(boot.LoaderBootCountPath)
	if err != nil && !errors.Is(err, boot.ErrNoVariable) {
		return fmt.Errorf("looking for the boot counter: %w", err)
	}

	counted = fileOf(counted)
	running := v.ofHash(v.runningHash())
	v.state.TrialBoot = counted != "" && slices.ContainsFunc(running, func(e entry) bool {
		return strings.EqualFold(e.file(), counted)
	})

	selected, err := s.variables.Text(boot.LoaderEntrySelected)
	if err != nil && !errors.Is(err, boot.ErrNoVariable) {
		return fmt.Errorf("looking for the selected boot entry: %w", err)
	}

	v.state.Problems = v.problems(running, counted, selected)

	return nil
}

// stagedHash is the root hash of the image that is ready to be armed.
func (s *Scheme) stagedHash(v *view) (string, error) {
	n, err := s.loadNote()
	if err != nil || !n.Verified || !n.isOf(v.layout.spare) {
		return "", err
	}

	files, err := v.files.List(linuxDir)
	if err != nil {
		return "", err
	}

	if !slices.ContainsFunc(files, func(f FileInfo) bool { return strings.EqualFold(f.Name, path.Base(stagedUKI)) }) {
		return "", nil
	}

	return n.RootHash, nil
}

// runningHash is the root hash of what runs. The command line has the last word: the part UUIDs are only names.
func (v *view) runningHash() string {
	if v.place.RootHash != "" {
		return v.place.RootHash
	}

	return v.layout.running.rootHash()
}

// slot describes a pair by the first of its boot entries.
func (v *view) slot(p pair, rootHash string) slots.Slot {
	slot := slots.Slot{Name: p.name, Version: p.labelVersion(), RootHash: rootHash, Boot: slots.NoEntry}

	if own := v.ofHash(rootHash); len(own) > 0 {
		slot.Entry, slot.Boot, slot.Version = own[0].file(), own[0].assessment(), own[0].version
	}

	return slot
}

// ofHash returns the boot entries that start the pair with that root hash.
func (v *view) ofHash(rootHash string) []entry {
	var own []entry

	for _, e := range v.entries {
		if rootHash != "" && e.rootHash == rootHash {
			own = append(own, e)
		}
	}

	return own
}

func (v *view) problems(running []entry, counted, selected string) []string {
	var found []string

	if v.layout.table.damaged != "" {
		found = append(found, v.layout.table.damaged+"; the next update mends it")
	}

	if v.outrank != "" {
		found = append(found, v.outrank)
	}

	if hash := v.layout.running.rootHash(); v.place.RootHash != "" && hash != v.place.RootHash {
		found = append(found, fmt.Sprintf("the part UUIDs of running slot %s are not those of the root hash that runs, so it "+
			"will not boot again; set them to %s and its end", v.layout.running.name, v.place.RootHash))
	}

	for _, name := range v.unusable {
		found = append(found, fmt.Sprintf("%s/%s on the boot partition is no unified kernel image; remove it", linuxDir, name))
	}

	return append(found, entryProblems(running, counted, selected)...)
}

// entryProblems looks at the entries of the running slot.
func entryProblems(running []entry, counted, selected string) []string {
	var found []string

	if len(running) == 0 {
		return []string{"no entry on the boot partition starts the running slot, so nothing can fall back to it"}
	}

	if len(running) > 1 {
		found = append(found, fmt.Sprintf("the running slot has several boot entries (%s and %s): with a counted and an "+
			"uncounted one the counter is never taken away; remove one", running[0].file(), running[1].file()))
	}

	if running[0].assessment() == slots.Trial && counted == "" {
		found = append(found, fmt.Sprintf("the running entry %s has a boot counter, but %s is absent: the firmware did not "+
			"write to the boot partition, so tries are not counted", running[0].file(), boot.LoaderBootCountPath))
	}

	if selected != "" && !slices.ContainsFunc(running, func(e entry) bool { return e.isSelected(selected) }) {
		found = append(found, fmt.Sprintf("the boot loader says that it started %s, but the running slot belongs to %s",
			selected, running[0].file()))
	}

	return found
}

// isSelected tells whether LoaderEntrySelected means the entry. Loaders differ in whether it has the extension and the
// counters, and add "@" and a number for a profile.
func (e entry) isSelected(selected string) bool {
	selected, _, _ = strings.Cut(selected, "@")
	if !strings.EqualFold(path.Ext(selected), e.name.Ext) {
		selected += e.name.Ext
	}

	return e.name.Same(boot.ParseEntryName(selected))
}

// fileOf is the file name in a path of the boot loader, which has backslashes.
func fileOf(efiPath string) string {
	return efiPath[strings.LastIndexAny(efiPath, `\/`)+1:]
}

// Observe reads the slots and boot entries. It changes nothing.
func (s *Scheme) Observe(ctx context.Context) (slots.State, error) {
	v, err := s.look(ctx)
	if err != nil {
		return slots.State{}, fmt.Errorf("observing the slots: %w", err)
	}

	if err := v.files.Close(); err != nil {
		return slots.State{}, fmt.Errorf("observing the slots: %w", err)
	}

	return v.state, nil
}
