package dps

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/stayput-dev/stayput/agent/boot"
	"github.com/stayput-dev/stayput/agent/slots"
)

// Paths on the boot partition.
const (
	linuxDir   = "EFI/Linux"
	entriesDir = "loader/entries"
	loaderConf = "loader/loader.conf"
	// stagedUKI is where the UKI of the next boot waits. systemd-boot lists only names that end in ".efi". It is in the
	// directory that it is going to be renamed in, so that the rename touches one directory only.
	stagedUKI = linuxDir + "/.stayput-staged.tmp"
)

// maxTextFile bounds what is read of a configuration file of the boot loader.
const maxTextFile = 64 << 10

// entry is a boot entry that systemd-boot lists.
type entry struct {
	// path is its file on the boot partition, name the file's name taken apart.
	path string
	name boot.EntryName
	// What it is sorted by (Boot Loader Specification, "Sorting").
	sortKey, machineID, version string
	// rootHash is the root hash on its command line; "" for an entry that is not a UKI.
	rootHash string
}

// listEntries returns the boot entries in the order in which systemd-boot shows them: the first is booted when nothing
// else is asked for. Files that systemd-boot would not list are left out and named in unusable.
func listEntries(files BootFiles) (entries []entry, unusable []string, err error) {
	images, err := files.List(linuxDir)
	if err != nil {
		return nil, nil, fmt.Errorf("listing boot entries: %w", err)
	}

	for _, file := range images {
		if !strings.EqualFold(path.Ext(file.Name), ".efi") {
			continue
		}

		image, err := readImageEntry(files, path.Join(linuxDir, file.Name))

		switch {
		case errors.Is(err, boot.ErrNotUKI):
			unusable = append(unusable, file.Name)
		case err != nil:
			return nil, nil, err
		default:
			entries = append(entries, image)
		}
	}

	texts, err := files.List(entriesDir)
	if err != nil {
		return nil, nil, fmt.Errorf("listing boot entries: %w", err)
	}

	for _, file := range texts {
		if !strings.EqualFold(path.Ext(file.Name), ".conf") {
			continue
		}

		text, err := readTextEntry(files, path.Join(entriesDir, file.Name))
		if err != nil {
			return nil, nil, err
		}

		entries = append(entries, text)
	}

	slices.SortStableFunc(entries, compareEntries)

	return entries, unusable, nil
}

// compareEntries is the order of systemd-boot (boot.c, boot_entry_compare).
func compareEntries(a, b entry) int {
	order := cmp.Or(
		compareBool(a.bad(), b.bad()),
		compareBool(a.sortKey == "", b.sortKey == ""),
	)
	if order != 0 {
		return order
	}

	if a.sortKey != "" {
		order = cmp.Or(
			strings.Compare(a.sortKey, b.sortKey),
			strings.Compare(a.machineID, b.machineID),
			slots.CompareVersions(b.version, a.version),
		)
	}

	order = cmp.Or(order, slots.CompareVersions(b.id(), a.id()))
	if order != 0 || !a.name.Counted || !b.name.Counted {
		return order
	}

	return cmp.Or(cmp.Compare(b.name.Left, a.name.Left), cmp.Compare(a.name.Done, b.name.Done))
}

func (e entry) bad() bool { return e.name.Counted && e.name.Left == 0 }

func (e entry) id() string { return strings.ToLower(e.name.ID + e.name.Ext) }

func (e entry) file() string { return path.Base(e.path) }

func (e entry) assessment() slots.Assessment {
	switch {
	case !e.name.Counted:
		return slots.Good
	case e.name.Left > 0:
		return slots.Trial
	default:
		return slots.Bad
	}
}

func readImageEntry(files BootFiles, file string) (entry, error) {
	image, err := readUKI(files, file)
	if err != nil {
		return entry{}, err
	}

	return entry{
		path: file, name: boot.ParseEntryName(path.Base(file)),
		sortKey: image.SortKey(), version: image.Version(), rootHash: image.RootHash(),
	}, nil
}

func readUKI(files BootFiles, file string) (boot.UKI, error) {
	open, err := files.Open(file)
	if err != nil {
		return boot.UKI{}, fmt.Errorf("reading boot file %s: %w", file, err)
	}

	image, err := boot.ReadUKI(open)
	if err = errors.Join(err, open.Close()); err != nil {
		return boot.UKI{}, fmt.Errorf("reading boot file %s: %w", file, err)
	}

	return image, nil
}

func readTextEntry(files BootFiles, file string) (entry, error) {
	text, err := readText(files, file)
	if err != nil {
		return entry{}, err
	}

	values := loaderValues(text)

	return entry{
		path: file, name: boot.ParseEntryName(path.Base(file)),
		sortKey: values["sort-key"], machineID: values["machine-id"], version: values["version"],
	}, nil
}

// loaderValues reads the format of loader.conf and of entries: a key, blanks, and a value on each line.
func loaderValues(text string) map[string]string {
	values := map[string]string{}

	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}

		key, value, _ := strings.Cut(strings.ReplaceAll(line, "\t", " "), " ")
		values[strings.ToLower(key)] = strings.TrimSpace(value)
	}

	return values
}

func readText(files BootFiles, file string) (string, error) {
	open, err := files.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}

	if err != nil {
		return "", fmt.Errorf("reading boot file %s: %w", file, err)
	}

	content, err := io.ReadAll(io.NewSectionReader(open, 0, min(open.Size(), maxTextFile)))
	if err = errors.Join(err, open.Close()); err != nil {
		return "", fmt.Errorf("reading boot file %s: %w", file, err)
	}

	return string(content), nil
}

// outranks says what makes systemd-boot ignore the order of entries, and with it the boot counters, "" when nothing does.
func outranks(files BootFiles, variables boot.Variables) (string, error) {
	for _, name := range []string{boot.LoaderEntryOneShot, boot.LoaderEntryPreferred, boot.LoaderEntryDefault} {
		value, err := variables.Text(name)
		if err != nil && !errors.Is(err, boot.ErrNoVariable) {
			return "", fmt.Errorf("looking for what outranks boot counting: %w", err)
		}

		if value != "" {
			return fmt.Sprintf("EFI variable %s=%q picks the next boot whatever the boot counters say; remove it with "+
				"`bootctl %s \"\"`", name, value, bootctlVerb(name)), nil
		}
	}

	text, err := readText(files, loaderConf)
	if err != nil {
		return "", err
	}

	values := loaderValues(text)
	for _, key := range []string{"default", "preferred"} {
		if value := values[key]; value != "" {
			return fmt.Sprintf("%s on the boot partition has `%s %s`, which picks the next boot whatever the boot "+
				"counters say; remove that line", loaderConf, key, value), nil
		}
	}

	return "", nil
}

func bootctlVerb(variable string) string {
	switch variable {
	case boot.LoaderEntryOneShot:
		return "set-oneshot"
	case boot.LoaderEntryPreferred:
		return "set-preferred"
	default:
		return "set-default"
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	default:
		return -1
	}
}

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }
